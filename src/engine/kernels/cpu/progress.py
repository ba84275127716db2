"""How far a compilation is, and how long it will still take. Does not compile: see build.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    num_done: int
    num_files: int
    seconds_left: float

    def __str__(self) -> str:
        left = f", about {self.seconds_left:.0f} s left" if self.num_done < self.num_files else ""
        return f"{self.num_done} of {self.num_files} files{left}"


Report = Callable[[Progress], None]


class Meter:
    """Reports the progress of files that are compiled several at a time, when the work begins and after each file.

    A file's weight is the number of seconds that it took on another machine. The ratio of the files that are done gives
    the pace of this one.
    """

    def __init__(
        self, weights: Sequence[float], jobs: int, report: Report, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """jobs: how many files are compiled at the same time."""
        self._waiting = sum(weights)  # weight of the files that are not done
        self._jobs, self._num_files, self._num_done = jobs, len(weights), 0
        self._done = self._busy = 0.0  # weight of the files that are done, and the seconds that they took
        self._begun: dict[Hashable, tuple[float, float]] = {}  # time and weight of each file that is being compiled
        self._report, self._clock = report, clock
        report(Progress(0, self._num_files, self._waiting / jobs))

    def begin(self, file: Hashable, weight: float) -> None:
        """Note that the compilation of a file begins. Any thread may call it."""
        self._begun[file] = self._clock(), weight

    def end(self, file: Hashable) -> None:
        """Reports the progress."""
        now = self._clock()
        began, weight = self._begun.pop(file)
        self._busy += now - began
        self._done += weight
        self._waiting -= weight
        self._num_done += 1
        pace = self._busy / self._done
        # Seconds that files in progress have already taken: at most what is expected of them.
        over = sum(min(now - began, weight * pace) for began, weight in list(self._begun.values()))
        jobs = max(1, min(self._jobs, self._num_files - self._num_done))
        self._report(Progress(self._num_done, self._num_files, (self._waiting * pace - over) / jobs))
