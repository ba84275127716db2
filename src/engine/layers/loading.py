"""The interface by which layers load weights: each declares the tensors it needs, then reads them one at a time.

A layer reads into the buffer from which its weights are fused or packed, so two complete copies of the weights never
exist at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self

import torch

from ..kernels import Grouped, Integers


class TensorReader(Protocol):
    def read(self, name: str, into: torch.Tensor) -> None:
        """Fills `into`, contiguous, with the tensor of that name, converted to its dtype."""
        ...

    def view(self, name: str, dtype: torch.dtype) -> torch.Tensor | None:
        """The tensor as a read-only view of the file, to be released after use; None if it must be copied."""
        ...

    def grouped(self, name: str, dtype: torch.dtype) -> Grouped | None:
        """A quantised matrix as codes and scales, for a model of this dtype; None if it must be read as numbers."""
        ...

    def integers(self, name: str) -> Integers | None:
        """A quantised matrix whose inputs the checkpoint's method rounds to int8 too; None for others."""
        ...


class Loadable(Protocol):
    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the tensors that `load` will read."""
        ...

    def load(self, tensors: TensorReader) -> None: ...

    def take_weights(self, other: Self) -> None:
        """Takes the weights of the same layer of another model, which can no longer be used."""
        ...

    @property
    def num_bytes(self) -> int:
        """Of the weights, after `load`."""
        ...
