"""LaunchQueue: plans to a runner that queues steps on its device and goes on, so that no thread is needed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from .core import StepPlan, StepResult
from .step_worker import NotBegun


class LaunchingRunner(Protocol):
    """What launches steps: runner/cuda/device_runner.py, or a fake in tests."""

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        """Queues the step; the function that waits for its result."""
        ...

    def idle(self) -> bool:
        """Does a part of what can wait for a quiet moment; False when nothing is left."""
        ...


class Launched:
    """A step on its way, or what kept it from the device."""

    def __init__(self, queue: LaunchQueue, launched: Callable[[], StepResult] | BaseException) -> None:
        self._queue = queue
        self._launched = launched
        self._began = queue.clock()

    def result(self) -> tuple[StepResult, float]:
        """The result and the seconds that the step took: since it was launched, or since the step before it ended."""
        queue = self._queue
        if isinstance(self._launched, BaseException):
            raise self._launched
        try:
            result = self._launched()
        except BaseException:
            queue.has_failed = True
            raise
        ended = queue.clock()
        seconds = ended - max(self._began, queue.ended)
        queue.ended = ended
        return result, seconds

    def wait(self) -> None:
        """For its end, where it was launched. Raises what the step raises."""
        if not isinstance(self._launched, BaseException):
            self._launched()


class LaunchQueue:
    """After a plan has failed none is begun until `recover`."""

    def __init__(self, runner: LaunchingRunner, clock: Callable[[], float] = time.perf_counter) -> None:
        self._runner = runner
        self.clock = clock
        self.ended = float("-inf")  # the newest step that did
        self.has_failed = False

    def submit(self, plan: StepPlan) -> Launched:
        """Gives what StepWorker.submit gives. Never raises: the step's result does."""
        if self.has_failed:
            return Launched(self, NotBegun())
        try:
            return Launched(self, self._runner.launch(plan))
        except BaseException as error:  # an interrupt too: whoever submits has a plan to give back
            self.has_failed = True
            return Launched(self, error)

    def recover(self, unfinished: Sequence[Launched]) -> None:
        """Wait for the end of plans that nobody wants the results of."""
        for launched in unfinished:
            with contextlib.suppress(Exception):
                launched.wait()
        self.has_failed = False
