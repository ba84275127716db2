"""What the engine asks of a scheduler: this build's own, or the class that `scheduler.scheduler_cls` names.

The easiest way to one of your own is a subclass of core.Scheduler that changes one decision.
"""

from __future__ import annotations

from typing import Protocol

from ..api import EngineOutput, EngineRequest, EngineStats
from .settings import SchedulerSettings
from .step_outputs import StepOutputs
from .step_plan import StepPlan, StepResult


class SchedulerInterface(Protocol):
    """All is called from one thread. Several plans may be in flight: `schedule` is called again before `finish_step`
    of the plan before, at most twice with `scheduler.async_scheduling`."""

    def __init__(self, settings: SchedulerSettings) -> None: ...

    @property
    def has_work(self) -> bool:
        """There is something to schedule, or a plan in flight."""

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises InvalidRequest or QueueFull, and then keeps nothing of it."""

    def abort(self, request_id: str) -> EngineOutput | None:
        """End a request wherever it is; None for one that is unknown or over."""

    def stats(self) -> EngineStats:
        """Counters, asked for after each step."""

    def schedule(self) -> StepPlan | None:
        """The next step, by the rules of StepPlan; None if nothing can be computed now."""

    def finish_step(self, plan: StepPlan, result: StepResult, step_time_s: float = 0.0) -> StepOutputs:
        """Take in what the oldest plan in flight brought; one output per request that got a token. StepOutputs(records)
        will do; only the plain tokens of a large batch are worth their columns."""

    def fail_step(self, plan: StepPlan, error: str) -> list[EngineOutput]:
        """The oldest plan in flight was not carried out: end its requests, and those of later plans, with `error`."""


MEMBERS = ("has_work", "add", "abort", "stats", "schedule", "finish_step", "fail_step")
