"""An event loop with a virtual clock: when nothing is ready to run, the clock jumps to the next timer.

For code whose only waits are timers and futures. Not for threads and real sockets: the clock would run ahead of
them.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "every task waits and no timer is set: the test would wait without end"
            self._loop.jump(timeout)
        return ready


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, with the clock starting at 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def now() -> float:
    """Seconds of the running loop's clock, rounded: jumps add up floating-point errors."""
    return round(asyncio.get_running_loop().time(), 6)
