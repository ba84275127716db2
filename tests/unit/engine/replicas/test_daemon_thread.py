"""Calls that block, in a thread that does not keep the process from ending."""

from __future__ import annotations

import asyncio
import threading

import pytest

from stoker.engine.replicas.daemon_thread import DaemonThread

LIMIT_S = 30.0


def test_calls_return_and_raise_in_order_and_one_that_is_cancelled_first_is_not_made():
    made: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def block() -> str:
        begun.set()
        assert go_on.wait(LIMIT_S)
        made.append("block")
        return threading.current_thread().name

    def fail() -> None:
        made.append("fail")
        raise OSError("it failed")

    async def run() -> None:
        thread = DaemonThread("blocking")
        blocked, cancelled = (asyncio.ensure_future(thread.run(call)) for call in (block, lambda: made.append("no")))
        await asyncio.to_thread(begun.wait, LIMIT_S)
        cancelled.cancel()
        await asyncio.wait((cancelled,))
        go_on.set()
        assert await blocked == "blocking"
        with pytest.raises(OSError, match="it failed"):
            await thread.run(fail)
        thread.close()

    asyncio.run(run())
    assert made == ["block", "fail"]
