"""SchedulerInterface: the methods of a scheduler that the engine calls. Implemented by core.Scheduler, or by the class
that `scheduler.scheduler_cls` names.

The simplest custom scheduler is a subclass of core.Scheduler that changes one decision.
"""

from __future__ import annotations

from typing import Protocol

from ..api import EngineOutput, EngineRequest, EngineStats
from ..step.plan import StepPlan
from ..step.result import StepOutputs, StepResult
from .settings import SchedulerSettings


class SchedulerInterface(Protocol):
    """All methods are called from one thread. Several plans may be in flight: `schedule` is called again before
    `finish_step` of the previous plan. With `scheduler.async_scheduling` at most two are in flight."""

    def __init__(self, settings: SchedulerSettings) -> None: ...

    @property
    def has_work(self) -> bool:
        """Whether there is something to schedule, or a plan in flight."""

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises InvalidRequest or QueueFull; then nothing of it is kept."""

    def abort(self, request_id: str) -> EngineOutput | None:
        """End a request in any state. Returns None for one that is unknown or has ended."""

    def stats(self) -> EngineStats:
        """Counters, read after each step."""

    def schedule(self) -> StepPlan | None:
        """The next step, by the rules of StepPlan; None if nothing can be computed now."""

    def finish_step(self, plan: StepPlan, result: StepResult, step_time_s: float = 0.0) -> StepOutputs:
        """Take in the result of the oldest plan in flight. Returns one output per request that got a token. Records
        are enough; columns pay off for the plain tokens of a large batch."""

    def fail_step(self, plan: StepPlan, error: str) -> list[EngineOutput]:
        """The oldest plan in flight was not executed: end its and later plans' requests with `error`."""

    def forget_cached(self) -> None:
        """Later requests reuse nothing. Called only with `model.enable_sleep_mode`, and without requests."""


MEMBERS = ("has_work", "add", "abort", "stats", "schedule", "finish_step", "fail_step", "forget_cached")
