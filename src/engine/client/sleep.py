"""Sleep: an engine process whose memory is free until it is woken, by request or after a time without requests.

Level 1 frees what only steps need: the KV cache, and on a GPU its weights, which are in host memory then; the process
and captured steps remain. Level 2 ends the process, which frees everything that it had; waking starts another, as after
a failure. A process that gave all of its weights back would keep its libraries, and some hundred megabytes with them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass

from ..api import EngineDead, SleepError
from ..host.supervision import IdleWatch

FREE_MEMORY, END_PROCESS = 1, 2  # levels
WATCH_INTERVAL_S = 0.5
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SleepPolicy:
    after_s: float | None = None  # without requests; None: the engine never sleeps by itself
    level: int = END_PROCESS


class Waking:
    """The start of a process that sleeps, for which all who need it wait together."""

    def __init__(self, wake: Callable[[], Coroutine[None, None, None]]) -> None:
        self._wake = wake
        self._task: asyncio.Task[None] | None = None

    async def done(self) -> None:
        """Raises what `wake` raises. A caller that is cancelled does not end it."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._wake())
        await asyncio.shield(self._task)

    async def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def watch_idle(
    policy: SleepPolicy, watch: IdleWatch, is_idle: Callable[[], bool], sleep: Callable[[int], Awaitable[None]]
) -> None:
    """Calls `sleep` with the level of the policy each time it is due, until cancelled. is_idle: awake, no request."""
    now = asyncio.get_running_loop().time
    while True:
        await asyncio.sleep(WATCH_INTERVAL_S)
        if not is_idle():
            watch.active(now())
        elif watch.is_due(now()):
            logger.info("no request for %g seconds: the engine goes to sleep", policy.after_s)
            try:
                await sleep(policy.level)
            except (EngineDead, SleepError) as error:
                logger.warning("the engine does not sleep: %s", error)
            watch.active(now())
