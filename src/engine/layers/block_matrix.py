"""A matrix of each head, of a layer that computes each head's outputs from its own inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import torch

from .loading import Held, TensorReader, tensor_of


class BlockMatrix:
    """values: [heads, inputs, outputs], as `expand_values` multiplies them, in the model's dtype; not quantised."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, int, int],
        dtype: torch.dtype,
        device: torch.device,
        *,
        has_outputs_first: bool = False,
        is_flat: bool = False,
    ) -> None:
        """shape: of `values`. has_outputs_first: the checkpoint has [heads, outputs, inputs]; is_flat: with the outputs
        of all heads as one dimension."""
        self._name, self._has_outputs_first = name, has_outputs_first
        self.values = torch.empty(shape, dtype=dtype, device=device)
        heads, inputs, outputs = shape
        stored = (heads, outputs, inputs) if has_outputs_first else shape
        self._stored = (heads * outputs, inputs) if is_flat else stored

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield self._name, self._stored

    def load(self, tensors: TensorReader) -> None:
        if not self._has_outputs_first:
            tensors.read(self._name, self.values)
            return
        given = self.values.new_empty(self._stored)
        tensors.read(self._name, given)
        self.values.copy_(given.view(self.values.transpose(1, 2).shape).transpose(1, 2))

    def take_weights(self, other: Self) -> None:
        self.values = other.values

    def held(self) -> Held:
        return {"values": self.values}

    def hold(self, held: Held) -> None:
        self.values = tensor_of(held, "values", self.values)

    @property
    def num_bytes(self) -> int:
        return self.values.nbytes
