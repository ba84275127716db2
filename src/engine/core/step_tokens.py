"""StepTokens: the number of tokens that each step computed, as a histogram for EngineStats."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class StepTokens:
    def __init__(self, limits: Sequence[float]) -> None:
        """limits: upper limits of the buckets, ascending."""
        self._limits = tuple(limits)
        self._counts = [0] * (len(self._limits) + 1)  # the last is above all limits
        self.total = 0

    def add(self, num_tokens: int) -> None:
        self._counts[bisect_left(self._limits, num_tokens)] += 1
        self.total += num_tokens

    @property
    def buckets(self) -> tuple[tuple[float, int], ...]:
        """Each limit, and the number of steps with at most that many tokens."""
        return tuple(zip(self._limits, accumulate(self._counts), strict=False))
