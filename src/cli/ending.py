"""The end of processes that serve: with a drain after one request to stop, without it after a second one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Any

from ..server.http.serve import EXIT_S
from ..server.http.shutdown import Shutdown


async def end_servers(
    ends: Sequence[asyncio.Future[Any]], send: Callable[[int], None], shutdown: Shutdown, drain_timeout: float
) -> None:
    """Returns when all have ended, whatever they do; then raises what one of `ends` has raised.

    ends: of the processes. send: sends a signal to those that run.
    """
    shutdown.requested.set()  # also after a failure: nothing is started again
    ended, cut = asyncio.gather(*ends, return_exceptions=True), asyncio.create_task(shutdown.cut.wait())
    waits: list[asyncio.Future[Any]] = [ended, cut]
    send(signal.SIGTERM)
    await asyncio.wait(waits, timeout=drain_timeout + 2 * EXIT_S, return_when=asyncio.FIRST_COMPLETED)
    cut.cancel()
    if not ended.done():
        send(signal.SIGTERM)
        await asyncio.wait([ended], timeout=2 * EXIT_S)
        send(signal.SIGKILL)
    await ended
    for end in ends:
        end.result()
