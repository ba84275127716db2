"""StepWorker: carries out plans in a thread of its own, in their order, so that the next one is planned meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from .core import StepPlan, StepResult


class NotBegun(Exception):
    """The plan was in the queue behind one that failed, and may build on what that one should have left."""


class StepWorker:
    """After a plan has failed none is begun until `recover`."""

    def __init__(
        self, execute: Callable[[StepPlan], StepResult], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._execute = execute
        self._clock = clock
        self._has_failed = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="steps")  # ends with its owner

    def submit(self, plan: StepPlan) -> Future[tuple[StepResult, float]]:
        """Gives the result and the seconds that the step took, or raises what the runner raised."""
        return self._pool.submit(self._run, plan)

    def recover(self, unfinished: list[Future[tuple[StepResult, float]]]) -> None:
        """Wait for the end of plans that nobody wants the results of; none of them is begun from now on."""
        self._has_failed = True
        wait(unfinished)
        self._has_failed = False

    def _run(self, plan: StepPlan) -> tuple[StepResult, float]:
        if self._has_failed:
            raise NotBegun
        started = self._clock()
        try:
            return self._execute(plan), self._clock() - started
        except BaseException:
            self._has_failed = True
            raise
