"""When an engine is stuck, and whether a dead one may be started again: rules only, every clock is passed in."""

from __future__ import annotations

from collections import deque

from .wire import Beat

STALL_LIMIT_S = 10.0
RESTART_WINDOW_S = 600.0


class Watchdog:
    """Tells a long step from a hung one.

    Progress is: outputs arrived, no request is open, the engine counted another step, or it is inside a step and
    burns processor time (a large prefill on a CPU takes tens of seconds and is no fault). A stopped process sends
    no beats, a deadlocked one burns nothing, a scheduler that never runs what waits counts no steps.
    """

    def __init__(self, now: float, *, limit_s: float = STALL_LIMIT_S, max_step_s: float = 600.0) -> None:
        self._limit_s = limit_s
        self._max_step_s = max_step_s  # a step that computes longer than this is an endless loop
        self._progress_at = now
        self._beat = Beat(0, False, 0.0)
        self._beat_at = now
        self._step_since = now

    def progress(self, now: float) -> None:
        self._progress_at = now

    def beat(self, beat: Beat, now: float) -> None:
        before, elapsed = self._beat, now - self._beat_at
        self._beat, self._beat_at = beat, now
        if beat.num_steps != before.num_steps or not beat.is_stepping:
            self._step_since = now
        # a fifth of one core: far above what a sleeping process uses, far below any computation
        computes = beat.is_stepping and beat.cpu_s - before.cpu_s > 0.2 * elapsed
        is_bounded = now - self._step_since < self._max_step_s
        if beat.num_steps != before.num_steps or (computes and is_bounded):
            self.progress(now)

    def is_stalled(self, now: float) -> bool:
        return now - self._progress_at >= self._limit_s


class RestartBudget:
    """At most `max_restarts` in any `window_s` seconds."""

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
