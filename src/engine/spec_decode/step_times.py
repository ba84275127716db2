"""StepTimes: how long a step of n tokens takes, from measurements at the start and from the steps since then."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_SHARE = 0.1  # of a new step in the mean


class StepTimes:
    """A curve over the number of tokens, measured with a short context. Longer contexts add about the same to a step of
    any number of tokens, so steps move the whole curve up and down. Until something is measured, the time of a step is
    in proportion to its tokens, so that no draft pays."""

    def __init__(self) -> None:
        self.measure({1: 1.0})

    def measure(self, measured: Mapping[int, float]) -> None:
        """measured: seconds, by the number of tokens; that of one token must be in it."""
        sizes = sorted(measured)
        self._sizes: Floats = np.array(sizes, np.float64)
        # A larger step never takes less time: what says so is noise.
        self._seconds: Floats = np.maximum.accumulate(np.array([measured[size] for size in sizes], np.float64))
        self._slope = self._slope_at_end()
        self._added = 0.0

    def _slope_at_end(self) -> float:
        sizes, seconds = self._sizes, self._seconds
        if len(sizes) == 1:
            return float(seconds[0])
        return float((seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]))

    def seconds(self, num_tokens: npt.NDArray[np.integer] | int) -> Floats:
        """The times of steps of these numbers of tokens."""
        return np.maximum(self._measured(num_tokens) + self._added, 1e-9)

    def took(self, num_tokens: int, seconds: float) -> None:
        difference = seconds - float(self._measured(num_tokens))
        # A step that takes many times as long was interrupted, and says nothing of the next one.
        difference = min(difference, 4 * float(self._seconds[0]) + max(0.0, self._added))
        self._added += _SHARE * (difference - self._added)

    def _measured(self, num_tokens: npt.NDArray[np.integer] | int) -> Floats:
        beyond = np.maximum(num_tokens - self._sizes[-1], 0.0)
        found: Floats = np.interp(num_tokens, self._sizes, self._seconds) + beyond * self._slope
        return found
