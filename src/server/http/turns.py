"""Turns: lets pieces of work of many requests run one after the other, with other tasks of the event loop in between.

When 600 requests arrive in the same moment, each does a few milliseconds of work before it first waits. Without turns
all of that is one iteration of the event loop, in which no other request is answered.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

BUDGET_S = 0.004  # of work in one iteration before others wait: a few requests that arrive together stay together
WOKEN = 2  # of the oldest, and as many of the newest, in each iteration


class Turns:
    """Runs work in each iteration of the event loop: what fits into the budget, then the oldest and newest piece.

    The newest one runs so that a probe that arrives after 600 requests does not wait for all of them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_busy = False  # somebody has taken a turn in this iteration
        self._began = 0.0  # when

    async def take(self) -> None:
        """Wait for a turn: at most a few milliseconds of work may follow. Does not wait if little else was done."""
        loop = asyncio.get_running_loop()
        if not self._is_busy:
            self._is_busy, self._began = True, self._clock()
            loop.call_soon(self._pass_on, loop)
        elif self._waiting or self._clock() - self._began > BUDGET_S:
            waiter = loop.create_future()
            self._waiting.append(waiter)
            await waiter

    def _pass_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_busy = bool(self._waiting)
        if self._is_busy:
            loop.call_soon(self._pass_on, loop)
        for take in (self._waiting.popleft, self._waiting.pop) * WOKEN:
            while self._waiting:
                waiter = take()
                if not waiter.done():  # else its task was cancelled
                    waiter.set_result(None)
                    break
