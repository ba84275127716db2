"""One value per element, held in float32: weights and biases of norms, attention sinks.

float32 holds what the model's dtype holds, so nothing changes for most models. Where the file holds offsets from one
(Gemma's norms), 1 + w has more digits than bfloat16, and rounding it would change the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Self

import torch

from .loading import Held, Loadable, TensorReader, tensor_of


class Vector:
    def __init__(
        self,
        names: str | Sequence[str],
        shape: int | tuple[int, ...] | list[tuple[int, ...]],
        dtype: torch.dtype,
        device: torch.device,
        offset: float = 0.0,
        *,
        scale: float = 1.0,
        is_exact: bool = False,
    ) -> None:
        """A vector of the checkpoint.

        Args:
            names: in the checkpoint. Several: their tensors are parts of the vector, in order.
            shape: in the checkpoint; a list has one for each of several tensors. A number is that of all elements, of
                which several tensors have equal parts.
            dtype: the model's, to which values are rounded.
            offset: is added to them.
            scale: then multiplies them.
            is_exact: they are not rounded: an error of what goes through an exponential grows.
        """
        self.names = (names,) if isinstance(names, str) else tuple(names)
        if isinstance(shape, int):
            shape = [(shape // len(self.names),)] * len(self.names)
        self._shapes = shape if isinstance(shape, list) else [shape]
        size = sum(math.prod(each) for each in self._shapes)
        self.values = torch.empty(size, dtype=torch.float32, device=device)
        self._dtype, self._offset, self._scale, self._is_exact = dtype, offset, scale, is_exact

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield from zip(self.names, self._shapes, strict=True)

    def load(self, tensors: TensorReader) -> None:
        dtype = self.values.dtype if self._is_exact else self._dtype
        given = torch.empty_like(self.values, dtype=dtype)
        parts = torch.split(given, [math.prod(each) for each in self._shapes])
        for name, shape, part in zip(self.names, self._shapes, parts, strict=True):
            tensors.read(name, part.view(shape))
        self.values.copy_(given).add_(self._offset).mul_(self._scale)

    def take_weights(self, other: Self) -> None:
        self.values.copy_(other.values)  # in place: other layers keep a reference

    def held(self) -> Held:
        return {"values": self.values}

    def hold(self, held: Held) -> None:
        self.values.copy_(tensor_of(held, "values", self.values))

    @property
    def num_bytes(self) -> int:
        """Bytes in the model's dtype, as `engine plan` counts."""
        return self.values.numel() * self._dtype.itemsize


class Scalar(Vector):
    """A number that kernels take as an argument. It is read once: reading it in a step would wait for the device."""

    value: float

    def __init__(self, name: str, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(name, 1, dtype, device)

    def load(self, tensors: TensorReader) -> None:
        super().load(tensors)
        self.value = self.values.item()

    def take_weights(self, other: Self) -> None:
        super().take_weights(other)
        self.value = other.value

    def hold(self, held: Held) -> None:
        super().hold(held)
        self.value = self.values.item()


class HasVectors:
    """A layer whose weights are vectors, or one without weights. Loads them, see Loadable."""

    _vectors: list[Vector]

    def loadables(self) -> Iterator[Loadable]:
        yield self

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for vector in self._vectors:
            yield from vector.wanted()

    def load(self, tensors: TensorReader) -> None:
        for vector in self._vectors:
            vector.load(tensors)

    def take_weights(self, other: Self) -> None:
        for mine, its in zip(self._vectors, other._vectors, strict=True):
            mine.take_weights(its)

    def held(self) -> Held:
        return {vector.names[0]: vector.values for vector in self._vectors}

    def hold(self, held: Held) -> None:
        for vector in self._vectors:
            name = vector.names[0]
            vector.hold({"values": held[name]} if name in held else {})  # a vector refuses to hold nothing

    @property
    def num_bytes(self) -> int:
        return sum(vector.num_bytes for vector in self._vectors)
