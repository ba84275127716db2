"""Histogram: how many values were at most each of some limits, for EngineStats."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from ..api import Distribution


class Histogram:
    def __init__(self, limits: Sequence[float]) -> None:
        """limits: upper limits of the buckets, ascending."""
        self._limits = tuple(limits)
        self._counts = [0] * (len(self._limits) + 1)  # the last is above all limits
        self.total: float = 0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._limits, value)] += 1
        self.total += value

    @property
    def buckets(self) -> tuple[tuple[float, int], ...]:
        """Each limit, and the number of values up to it."""
        return tuple(zip(self._limits, accumulate(self._counts), strict=False))

    @property
    def distribution(self) -> Distribution:
        return Distribution(self.buckets, sum(self._counts), self.total)
