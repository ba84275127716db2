"""ThreadStepQueue: executes plans in a thread, in order, while the caller plans the next one."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from ..step import StepPlan
from .step_queue import NotStarted, Runner, TimedResult


class ThreadStepQueue:
    depth = 2  # one computes, one is ready to start

    def __init__(self, runner: Runner, clock: Callable[[], float] = time.perf_counter) -> None:
        self._runner = runner
        self._clock = clock
        self._has_failed = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="steps")  # the thread ends when the queue is collected

    def submit(self, plan: StepPlan) -> Future[TimedResult]:
        return self._pool.submit(self._execute, plan)

    def recover(self, unfinished: list[Future[TimedResult]]) -> None:
        """Wait until these have ended. Those that have not begun are not started."""
        self._has_failed = True
        wait(unfinished)
        self._has_failed = False

    def _execute(self, plan: StepPlan) -> TimedResult:
        if self._has_failed:
            raise NotStarted
        started = self._clock()
        try:
            return self._runner.execute(plan), self._clock() - started
        except BaseException:
            self._has_failed = True
            raise
