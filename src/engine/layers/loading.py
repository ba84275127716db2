"""The interface by which layers load weights: each declares the tensors it needs, then reads them one at a time.

A layer reads into the buffer from which its weights are fused or packed, so two complete copies of the weights never
exist at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, Self

import torch

from ..kernels import Grouped, Integers, PackedExperts, PackedLinear

Held = Mapping[str, torch.Tensor | PackedLinear | PackedExperts]  # the weights of a layer as kernels hold them


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

    def held(self) -> Held:
        """The weights as `load` has made them."""
        ...

    def hold(self, held: Held) -> None:
        """Takes what `held` of the same layer has returned, from a file. Raises ValueError if it does not fit."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights, after `load`."""
        ...


def tensor_of(held: Held, name: str, like: torch.Tensor) -> torch.Tensor:
    """A tensor that has the shape and the dtype of `like`. Raises ValueError."""
    found = held.get(name)
    if not isinstance(found, torch.Tensor) or found.shape != like.shape or found.dtype != like.dtype:
        raise ValueError(f"`{name}` must be {list(like.shape)} in {like.dtype}")
    return found


def linear_of(held: Held, name: str, out_features: int, in_features: int, dtype: torch.dtype) -> PackedLinear:
    """Raises ValueError unless it is a linear layer of these sizes."""
    found = held.get(name)
    if not isinstance(found, PackedLinear) or (found.out_features, found.in_features, found.dtype) != (
        out_features,
        in_features,
        dtype,
    ):
        raise ValueError(f"`{name}` must be a layer of {out_features} by {in_features} in {dtype}")
    return found
