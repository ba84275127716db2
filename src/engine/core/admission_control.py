"""AdmissionControl: refuses requests when too many wait, and estimates when to try again.

Counts requests and tokens only. Does not know slots, blocks or steps.
"""

from __future__ import annotations

from ..api import QueueFull
from .policy import WaitingQueue
from .settings import SchedulerSettings

MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0


class AdmissionControl:
    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._num_left_waiting = 0  # by the newest plan
        self.step_time_s = 0.0  # all finished steps together

    def step_planned(self, num_waiting: int) -> None:
        self._num_left_waiting = num_waiting

    def step_finished(self, seconds: float) -> None:
        self.step_time_s += seconds

    def check(self, num_tokens: int, waiting: WaitingQueue, *, num_free_slots: int, num_finished: int) -> None:
        """Raises QueueFull if a prompt of `num_tokens` tokens cannot join the queue now.

        num_finished: requests that have ended since the start.
        """
        settings = self._settings
        if self._num_ahead(len(waiting), num_free_slots) >= settings.max_queued_requests:
            raise QueueFull(f"{len(waiting)} requests are waiting", retry_after_s=self._retry_after(1, num_finished))
        over = waiting.num_tokens + num_tokens - settings.max_queued_tokens
        if len(waiting) and over > 0:
            mean = waiting.num_tokens / len(waiting)
            raise QueueFull(
                f"requests with {waiting.num_tokens} prompt tokens are waiting",
                retry_after_s=self._retry_after(over / mean, num_finished),
            )

    def _num_ahead(self, num_waiting: int, num_free_slots: int) -> int:
        """Requests that a new one would wait for.

        Free slots are for those that have arrived since the last plan. If that plan left some waiting although slots
        are free, they lack memory or budget, and free slots do not count.
        """
        is_blocked = bool(self._num_left_waiting and num_waiting)
        return num_waiting - (0 if is_blocked else num_free_slots)

    def _retry_after(self, num_requests: float, num_finished: int) -> float:
        """Seconds until this number of requests has left the queue, at the rate of those finished so far."""
        seconds_each = self.step_time_s / num_finished if num_finished else 0.0
        return min(max(num_requests * seconds_each, MIN_RETRY_S), MAX_RETRY_S)
