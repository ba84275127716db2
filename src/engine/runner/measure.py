"""Measures start-up: named, timed phases, and the memory of this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def process_memory() -> tuple[int, int] | None:
    """Resident and peak bytes of this process; None where the system does not report them."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        sizes = {
            name: int(rest.split()[0]) * 1024
            for name, _, rest in (line.partition(":") for line in lines)
            if name in ("VmRSS", "VmHWM")
        }
        return sizes["VmRSS"], sizes["VmHWM"]
    except (OSError, ValueError, KeyError):
        return None


class PhaseClock:
    """Times of phases. Each `start` ends the previous phase. Reports each name when its phase begins and keeps the
    seconds, in order."""

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

    def note(self, text: str) -> None:
        """Reports what the current phase does: `kernels: compiling 3 of 9 files`."""
        if self._report is not None and self._name is not None:
            self._report(f"{self._name}: {text}")

    def stop(self) -> None:
        if self._name is not None:
            spent = self._clock() - self._began
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + spent
            self._name = None
