"""Background: threads of pools, in the time of a simulation: what they do happens between its actions.

`executor` takes the place of ThreadPoolExecutor. Each of its threads does one piece of work after the other; each takes
a random number of ticks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass(slots=True)
class _Work:
    future: Future[Any]
    call: Callable[[], Any]
    num_ticks: int  # until it is done

    def run(self) -> None:
        if self.future.set_running_or_notify_cancel():
            try:
                self.future.set_result(self.call())
            except Exception as error:
                self.future.set_exception(error)


class LateExecutor:
    """The part of ThreadPoolExecutor that is used."""

    def __init__(self, random: Random, num_threads: int) -> None:
        self._random, self._num_threads = random, num_threads
        self._queue: deque[_Work] = deque()

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def submit(self, call: Callable[..., Any], *args: object) -> Future[Any]:
        work = _Work(Future(), lambda: call(*args), self._random.choice((0, 0, 1, 3, 9)))
        self._queue.append(work)
        return work.future

    def tick(self) -> None:
        for work in list(self._queue)[: self._num_threads]:
            work.num_ticks -= 1
            if work.num_ticks < 0:
                self._queue.remove(work)
                work.run()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while self._queue:
            work = self._queue.popleft()
            if cancel_futures:
                work.future.cancel()
            elif wait:
                work.run()

    def delay(self, num_ticks: int) -> None:
        """What its threads do now takes so long."""
        for work in list(self._queue)[: self._num_threads]:
            work.num_ticks = max(work.num_ticks, num_ticks)

    def lose(self) -> None:
        """The process has ended: nothing of it happens."""
        self._queue.clear()


class Background:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._executors: list[LateExecutor] = []

    def executor(self, num_threads: int, name: str = "") -> LateExecutor:
        self._executors.append(LateExecutor(self._random, num_threads))
        return self._executors[-1]

    def tick(self) -> None:
        for executor in self._executors:
            executor.tick()

    def stall(self, num_ticks: int) -> None:
        for executor in self._executors:
            executor.delay(num_ticks)

    def lose(self) -> None:
        for executor in self._executors:
            executor.lose()
