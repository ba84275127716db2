"""StepQueue: how EngineCore has steps executed, and the queue that executes each one before `submit` returns.

Two others overlap steps with planning: thread_step_queue.py (a thread) and device_step_queue.py (a device's own queue).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from ..step import StepPlan, StepResult

PendingT = TypeVar("PendingT", bound="PendingStep")
TimedResult = tuple[StepResult, float]  # and the seconds that the step took


class Runner(Protocol):
    """Executes steps: runner/runner.py, or a fake in tests."""

    def execute(self, plan: StepPlan) -> StepResult: ...


class PendingStep(Protocol):
    """A step that was submitted."""

    def result(self) -> TimedResult:
        """Waits for the result. Raises what the runner raised, or NotStarted."""
        ...


class StepQueue(Protocol[PendingT]):
    """Executes plans in the order of `submit`. After a step has failed, none is started until `recover`."""

    depth: int  # steps that may be in flight

    def submit(self, plan: StepPlan) -> PendingT:
        """Raises nothing: the step's result does."""
        ...

    def recover(self, unfinished: list[PendingT]) -> None:
        """Wait, after a failure, for these steps to end without taking their results, and accept plans again."""
        ...


class RunnerUnusable(RuntimeError):
    """Steps fail one after another: the engine must be restarted."""


class FailedAfterExchange(Exception):
    """A step failed that several processes compute, after their last exchange: all are ready for the next step."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class FailedOnRank0(Exception):
    """A step failed there; this rank is ready for the next one."""

    def __init__(self, cause: str) -> None:
        """cause: of `cause_of`."""
        super().__init__(f"the step failed on rank 0: {cause}")
        self.cause = cause


def cause_of(error: Exception) -> str:
    """The kind of failure, for users: without addresses or paths. The log has the rest."""
    if isinstance(error, FailedOnRank0):
        return error.cause
    is_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return "out of memory" if is_memory or "allocate memory" in str(error).lower() else type(error).__name__


class NotStarted(Exception):
    """The plan was queued after one that failed, and may depend on what that one should have written."""


class InlineStepQueue:
    """One step after the other, in the caller's thread."""

    depth = 1

    def __init__(self, runner: Runner, clock: Callable[[], float] = time.perf_counter) -> None:
        self._runner = runner
        self._clock = clock

    def submit(self, plan: StepPlan) -> ExecutedStep:
        started = self._clock()
        try:
            result = self._runner.execute(plan)
        except BaseException as error:  # an interrupt too: EngineCore returns the plan to the scheduler
            return ExecutedStep(error)
        return ExecutedStep((result, self._clock() - started))

    def recover(self, unfinished: list[ExecutedStep]) -> None:
        """Does nothing: no step is unfinished."""


class ExecutedStep:
    def __init__(self, outcome: TimedResult | BaseException) -> None:
        self._outcome = outcome

    def result(self) -> TimedResult:
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome
