"""StepTimes: how long steps with drafts take, from measurements at the start and from the steps since then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_SHARE = 0.1  # of a new step in a mean
_LEAST_SLOPE = 0.005  # of a step: what each further token costs at least, so that a flat measurement can be corrected
# Limits of one step's correction: a step that was interrupted, or captured, says nothing of the next one.
_FACTORS = (0.25, 4.0)
_LEAST_FACTOR = 0.05  # of what drafts add


class StepTimes:
    """A curve over the number of tokens, measured at the start, and two corrections of it. Steps without drafts say how
    long all steps take now, with their contexts and the other work of the machine; steps with drafts say what the
    tokens of drafts cost beside that. Until something is measured, the time of a step is in proportion to its tokens,
    so that no draft pays."""

    def __init__(self) -> None:
        self.measure({1: 1.0})

    def measure(self, measured: Mapping[int, float]) -> None:
        """measured: seconds, by the number of tokens; that of one token must be in it."""
        sizes = sorted(measured)
        self._sizes: Floats = np.array(sizes, np.float64)
        # A larger step never takes less time: what says so is noise.
        self._seconds: Floats = np.maximum.accumulate(np.array([measured[size] for size in sizes], np.float64))
        self._slope = self._slope_at_end()
        self._scale = self._factor = 1.0

    def _slope_at_end(self) -> float:
        """Seconds of a token beyond what was measured, from points that are far apart: noise matters little then."""
        sizes, seconds = self._sizes, self._seconds
        if len(sizes) == 1:
            return float(seconds[0])
        before = max(0, int(np.searchsorted(sizes, sizes[-1] / 4, side="right")) - 1)
        slopes = [(seconds[-1] - seconds[at]) / (sizes[-1] - sizes[at]) for at in (0, before)]
        return float(max(slopes))

    def seconds(self, num_rows: int, num_drafts: npt.NDArray[np.integer] | int = 0) -> Floats:
        """The times of steps of this number of rows, and of drafts in all of them."""
        found: Floats = self._scale * (self._measured(num_rows) + self._factor * self._added(num_rows, num_drafts))
        return found

    def alone(self, num_rows: npt.NDArray[np.integer]) -> Floats:
        """The times of steps of these numbers of rows, without drafts."""
        found: Floats = self._scale * self._measured(num_rows)
        return found

    def record(self, num_rows: int, num_drafts: int, seconds: float) -> None:
        """A step of these rows and drafts, and nothing else, has taken this time."""
        least, most = _FACTORS
        if not num_drafts:
            found = float(np.clip(seconds / float(self._measured(num_rows)), self._scale * least, self._scale * most))
            self._scale += _SHARE * (found - self._scale)
            return
        added = seconds / self._scale - float(self._measured(num_rows))
        found = added / float(self._added(num_rows, num_drafts))
        found = float(np.clip(found, max(self._factor * least, _LEAST_FACTOR), self._factor * most))
        self._factor += _SHARE * (found - self._factor)

    def _added(self, num_rows: int, num_drafts: npt.NDArray[np.integer] | int) -> Floats:
        alone = self._measured(num_rows)
        found: Floats = np.maximum(self._measured(num_rows + num_drafts) - alone, _LEAST_SLOPE * alone * num_drafts)
        return found

    def _measured(self, num_tokens: npt.NDArray[np.integer] | int) -> Floats:
        beyond = np.maximum(num_tokens - self._sizes[-1], 0.0)
        found: Floats = np.interp(num_tokens, self._sizes, self._seconds) + beyond * self._slope
        return found


@dataclass(frozen=True, slots=True)
class DraftTimes:
    steps: StepTimes = field(default_factory=StepTimes)
    # The times in which a network drafts this number of tokens one after the other. Only their scale depends on how
    # many sequences get some.
    drafts: StepTimes = field(default_factory=StepTimes)
