"""Start-up in named, timed phases."""

from __future__ import annotations

import time
from collections.abc import Callable


class PhaseClock:
    """Each `start` ends the phase before it. Reports names as they begin and keeps their seconds, in order."""

    def __init__(
        self, report: Callable[[str], None] | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._report = report
        self._clock = clock
        self._name: str | None = None
        self._began = 0.0
        self._percent = -1
        self.seconds: dict[str, float] = {}

    def start(self, name: str) -> None:
        self.stop()
        self._name, self._began = name, self._clock()
        if self._report is not None:
            self._report(name)

    def progress(self, share: float) -> None:
        """Reports `weights: 42 %`, once for each whole percent. share: of the current phase, from 0 to 1."""
        percent = int(share * 100)
        if self._report is not None and self._name is not None and percent != self._percent:
            self._report(f"{self._name}: {percent} %")
        self._percent = percent

    def stop(self) -> None:
        if self._name is not None:
            spent = self._clock() - self._began
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + spent
            self._name = None
