"""DistanceBiases: a learned bias of each head's scores, by the distance of the key from the query.

Distances are in buckets: half of them for keys after the query, and in each half the first ones have one distance each,
the others more and more, by its logarithm. Source: T5, arXiv:1910.10683, section 2.1.
"""

from __future__ import annotations

import math
from typing import Self

import torch

from .loading import Held, TensorReader
from .vector import Vector

_LONGEST = 128  # the last bucket has all distances from here on


class DistanceBiases(Vector):
    """table: [num_heads, 2 * S + 1] float32, the biases of keys from S tokens before a query to S tokens after it."""

    def __init__(self, name: str, num_buckets: int, num_heads: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(name, (num_buckets, num_heads), dtype, device)
        self._buckets = buckets_of(torch.arange(-_LONGEST, _LONGEST + 1), num_buckets).to(device)
        self.table = torch.empty(num_heads, 2 * _LONGEST + 1, device=device)

    def load(self, tensors: TensorReader) -> None:
        super().load(tensors)
        self._spread()

    def take_weights(self, other: Self) -> None:
        super().take_weights(other)
        self._spread()

    def hold(self, held: Held) -> None:
        super().hold(held)
        self._spread()

    def _spread(self) -> None:
        self.table.copy_(self.values.view(-1, len(self.table))[self._buckets].T)


def buckets_of(offsets: torch.Tensor, num_buckets: int) -> torch.Tensor:
    """The bucket of each place of a key less that of the query, int64. num_buckets: a multiple of 4."""
    half = num_buckets // 2
    exact = half // 2
    distances = offsets.abs()
    grown = torch.log(distances.clamp(min=1).float() / exact) / math.log(_LONGEST / exact) * (half - exact)
    buckets = torch.where(distances < exact, distances, (exact + grown.long()).clamp(max=half - 1))
    return buckets + (offsets > 0) * half
