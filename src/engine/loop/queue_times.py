"""QueueTimes: how long each request waited before a step first computed it. Knows request ids and a clock only."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..api import EngineOutput
from ..step import StepPlan


class QueueTimes:
    """A time is reported once, with the first output of its request; later waits, after a preemption, do not count."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._arrived_at: dict[str, float] = {}  # requests that no step has computed
        self._queued_s: dict[str, float] = {}  # requests without an output

    def arrived(self, request_id: str) -> None:
        self._arrived_at[request_id] = self._clock()

    def planned(self, plan: StepPlan) -> None:
        """Record which requests are in a step for the first time."""
        if not plan.admissions:
            return
        now = self._clock()
        for admission in plan.admissions:
            arrived_at = self._arrived_at.pop(admission.request_id, None)
            if arrived_at is not None:
                self._queued_s[admission.request_id] = now - arrived_at

    def fill(self, outputs: Iterable[EngineOutput]) -> None:
        """Set `queued_s` of first outputs."""
        for output in outputs:
            output.queued_s = self._queued_s.pop(output.request_id, None)
            if output.finish_reason is not None:  # perhaps without having been computed
                self._arrived_at.pop(output.request_id, None)

    def forget(self, request_id: str) -> None:
        """Forget a request that was aborted."""
        self._arrived_at.pop(request_id, None)
        self._queued_s.pop(request_id, None)
