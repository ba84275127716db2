"""Turns: lets pieces of work of many requests run one after the other, with other tasks of the event loop in between.

When 600 requests arrive in the same moment, each does a few milliseconds of work before it first waits. Without turns
all of that is one iteration of the event loop, in which no other request is answered.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """In each iteration of the event loop two pieces of work: the oldest, and the newest.

    The newest, so that a probe that arrives after 600 requests does not wait for all of them.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_busy = False  # somebody has taken a turn in this iteration

    async def take(self) -> None:
        """Wait for a turn: at most a few milliseconds of work may follow. Does not wait if no other work is waiting."""
        loop = asyncio.get_running_loop()
        if self._is_busy:
            waiter = loop.create_future()
            self._waiting.append(waiter)
            await waiter
        else:
            self._is_busy = True
            loop.call_soon(self._pass_on, loop)

    def _pass_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_busy = bool(self._waiting)
        if self._is_busy:
            loop.call_soon(self._pass_on, loop)
        for take in (self._waiting.popleft, self._waiting.pop):
            while self._waiting:
                waiter = take()
                if not waiter.done():  # else its task was cancelled
                    waiter.set_result(None)
                    break
