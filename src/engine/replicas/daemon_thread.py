"""DaemonThread: calls that block, for an event loop. Unlike an executor's it does not keep the process from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


class DaemonThread:
    """A thread that runs all calls, in order."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def run(self, call: Callable[..., Result], *arguments: Any) -> Result:
        """What the call returns or raises. One that has begun goes on if this is cancelled."""
        done: Future[Result] = Future()

        def work() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                result = call(*arguments)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        self._calls.put(work)
        return await asyncio.wrap_future(done)

    def close(self) -> None:
        """The thread ends after the calls so far."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
