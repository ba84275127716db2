"""Decides when an engine is stalled, and whether a dead one may be restarted. Rules only: times are passed in."""

from __future__ import annotations

from collections import deque

from ..transport.messages import Heartbeat

STALL_LIMIT_S = 10.0
RESTART_WINDOW_S = 600.0


class Watchdog:
    """Distinguishes a long step from one that hangs.

    Progress is: outputs arrived, no request is open, the engine counted another step, it reads an adapter (perhaps the
    only request waits for slow storage), or it is inside a step and uses processor time (a large prefill on a CPU takes
    tens of seconds and is not a fault). A stopped process sends no heartbeats, a deadlocked one uses no processor time,
    a scheduler that never runs waiting requests counts no steps.
    """

    def __init__(self, now: float, *, limit_s: float = STALL_LIMIT_S, max_step_s: float = 600.0) -> None:
        self._limit_s = limit_s
        self._max_step_s = max_step_s  # a step that takes longer is an endless loop
        self._progress_at = now
        self._heartbeat = Heartbeat(0, False, 0.0)
        self._heartbeat_at = now
        self._step_since = now

    def progress(self, now: float) -> None:
        self._progress_at = now

    def heartbeat(self, heartbeat: Heartbeat, now: float) -> None:
        before, elapsed = self._heartbeat, now - self._heartbeat_at
        self._heartbeat, self._heartbeat_at = heartbeat, now
        if heartbeat.num_steps != before.num_steps or not heartbeat.is_stepping:
            self._step_since = now
        # a fifth of one core: far more than a sleeping process uses, far less than any computation
        is_reading = heartbeat.is_reading and not heartbeat.is_stepping  # a read does not excuse a step that hangs
        computes = heartbeat.is_stepping and heartbeat.cpu_s - before.cpu_s > 0.2 * elapsed
        is_bounded = now - self._step_since < self._max_step_s
        if heartbeat.num_steps != before.num_steps or is_reading or (computes and is_bounded):
            self.progress(now)

    def is_stalled(self, now: float) -> bool:
        return now - self._progress_at >= self._limit_s

    def is_idle(self, now: float) -> bool:
        """Whether it has lately said that it is between steps: it lives, and no step hangs."""
        return not self._heartbeat.is_stepping and now - self._heartbeat_at < self._limit_s


class IdleWatch:
    """Decides when an engine without requests is to sleep."""

    def __init__(self, now: float, limit_s: float) -> None:
        """limit_s: without a request."""
        self._limit_s = limit_s
        self._active_at = now

    def active(self, now: float) -> None:
        self._active_at = now

    def is_due(self, now: float) -> bool:
        return now - self._active_at >= self._limit_s


class RestartBudget:
    """Allows at most `max_restarts` in any `window_s` seconds."""

    def __init__(self, max_restarts: int, *, window_s: float = RESTART_WINDOW_S) -> None:
        self.max_restarts = max_restarts
        self._window_s = window_s
        self._taken: deque[float] = deque()

    def take(self, now: float) -> bool:
        """Whether one more restart is allowed; if so it is counted."""
        while self._taken and now - self._taken[0] >= self._window_s:
            self._taken.popleft()
        if len(self._taken) >= self.max_restarts:
            return False
        self._taken.append(now)
        return True
