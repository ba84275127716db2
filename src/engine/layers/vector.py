"""One value per element, held in float32: weights and biases of norms, attention sinks.

float32 holds what the model's dtype holds, so nothing changes for most models. Where the file holds offsets from one
(Gemma's norms), 1 + w has more digits than bfloat16, and rounding it would change the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Self

import torch

from .loading import TensorReader


class Vector:
    def __init__(
        self,
        name: str,
        shape: int | tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        offset: float = 0.0,
    ) -> None:
        """name, shape: in the checkpoint. dtype: the model's, to which values are rounded. offset: is added to them."""
        self.name = name
        self._shape = (shape,) if isinstance(shape, int) else shape
        self.values = torch.empty(math.prod(self._shape), dtype=torch.float32, device=device)
        self._dtype, self._offset = dtype, offset

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield self.name, self._shape

    def load(self, tensors: TensorReader) -> None:
        given = torch.empty(self._shape, dtype=self._dtype, device=self.values.device)
        tensors.read(self.name, given)
        self.values.copy_(given.flatten()).add_(self._offset)

    def take_weights(self, other: Self) -> None:
        self.values.copy_(other.values)  # in place: other layers keep a reference

    @property
    def num_bytes(self) -> int:
        """In the model's dtype, as `engine plan` counts."""
        return self.values.numel() * self._dtype.itemsize
