"""DeviceStepQueue: submits plans to a runner that queues steps on its device and returns, so no thread is needed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ..step import StepPlan, StepResult
from .step_queue import NotStarted, TimedResult


class LaunchingRunner(Protocol):
    """Launches steps: runner/runner.py, or a fake in tests."""

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        """Queues the step on the device. Returns a function that waits for its result."""
        ...


class LaunchedStep:
    """A step on the device, or the exception that kept it from the device."""

    def __init__(self, queue: DeviceStepQueue, launched: Callable[[], StepResult] | BaseException) -> None:
        self._queue = queue
        self._launched = launched
        self._started = queue.clock()

    def result(self) -> TimedResult:
        """The seconds count from the launch, or from the end of the previous step if that was later."""
        queue = self._queue
        if isinstance(self._launched, BaseException):
            raise self._launched
        try:
            result = self._launched()
        except BaseException:
            queue.has_failed = True
            raise
        ended = queue.clock()
        seconds = ended - max(self._started, queue.ended)
        queue.ended = ended
        return result, seconds

    def wait(self) -> None:
        """Wait until the step has ended, if it was launched. Raises what the step raises."""
        if not isinstance(self._launched, BaseException):
            self._launched()


class DeviceStepQueue:
    def __init__(
        self, runner: LaunchingRunner, clock: Callable[[], float] = time.perf_counter, *, depth: int = 2
    ) -> None:
        """depth: steps in flight: of two, one computes and one is queued on the device; one for each pipeline stage."""
        self._runner = runner
        self.depth = depth
        self.clock = clock
        self.ended = float("-inf")  # when the newest finished step ended
        self.has_failed = False

    def submit(self, plan: StepPlan) -> LaunchedStep:
        if self.has_failed:
            return LaunchedStep(self, NotStarted())
        try:
            return LaunchedStep(self, self._runner.launch(plan))
        except BaseException as error:  # an interrupt too: EngineCore returns the plan to the scheduler
            self.has_failed = True
            return LaunchedStep(self, error)

    def recover(self, unfinished: Sequence[LaunchedStep]) -> None:
        for launched in unfinished:
            with contextlib.suppress(Exception):
                launched.wait()
        self.has_failed = False
