"""Norms: weights and eps. The next linear layer computes an RMSNorm, fused into one op if a kernel supports that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import torch

from ..kernels import KernelSet
from .loading import Held, TensorReader
from .vector import Vector


class _Stored:
    """The vectors of a norm that are in the checkpoint."""

    _vectors: list[Vector]

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
            vector.hold({"values": held[vector.names[0]]} if vector.names[0] in held else {})

    @property
    def num_bytes(self) -> int:
        return sum(vector.num_bytes for vector in self._vectors)


class RMSNorm(_Stored):
    """Zhang and Sennrich, arXiv:1910.07467."""

    def __init__(
        self,
        names: str | Sequence[str],
        width: int | tuple[int, ...],
        eps: float,
        dtype: torch.dtype,
        device: torch.device,
        *,
        offset: float = 0.0,
        has_weight: bool = True,
    ) -> None:
        """The norm of a vector of `width` elements.

        Args:
            names: in the checkpoint, without `.weight`; several for heads whose weights are stored one by one.
            width: of all names; a tuple is the shape in the checkpoint.
            offset: is added to the stored weight, 1 for Gemma.
            has_weight: False for a norm that only scales.
        """
        self.eps = eps
        self._vectors = [Vector(_each(names, "weight"), width, dtype, device, offset)] if has_weight else []
        self.weight = self._vectors[0].values if has_weight else torch.ones(width, device=device)

    def __call__(
        self, kernels: KernelSet, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x, residual: [T, width]. Returns the norm of x + residual, and the sum."""
        return kernels.add_rms_norm(x, residual, self.weight, self.eps)


class LayerNorm(_Stored):
    """Ba et al., arXiv:1607.06450."""

    def __init__(
        self,
        names: str | Sequence[str],
        width: int | tuple[int, ...],
        eps: float,
        dtype: torch.dtype,
        device: torch.device,
        *,
        offset: float = 0.0,
        has_weight: bool = True,
        has_bias: bool = False,
    ) -> None:
        """See RMSNorm. offset: 1 for Nemotron. has_weight: False for OLMo."""
        self.eps = eps
        weight = [Vector(_each(names, "weight"), width, dtype, device, offset)] if has_weight else []
        bias = [Vector(_each(names, "bias"), width, dtype, device)] if has_bias else []
        self._vectors = weight + bias
        self.weight = weight[0].values if weight else torch.ones(width, device=device)
        self.bias = bias[0].values if bias else None

    def __call__(
        self, kernels: KernelSet, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See RMSNorm."""
        return kernels.add_layer_norm(x, residual, self.weight, self.bias, self.eps)


Norm = RMSNorm | LayerNorm


def _each(names: str | Sequence[str], kind: str) -> list[str]:
    return [f"{name}.{kind}" for name in ([names] if isinstance(names, str) else names)]
