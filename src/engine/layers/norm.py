"""Norms of a model: their weights, in float32, and their eps.

A norm is called with the kernels that compute it, and returns the normed sum and the sum, which is the next residual:

    norm = RMSNorm("model.norm", 2048, 1e-6, dtype, device)
    normed, total = norm(kernels, x, residual)

A linear layer that follows an RMSNorm takes the norm itself: some kernels compute both in one operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch

from ..kernels import KernelSet
from .loading import Loadable
from .vector import HasVectors, Vector

Mix = Any  # of linear.py, which takes norms


class RMSNorm(HasVectors):
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
        scale: float = 1.0,
        has_weight: bool = True,
    ) -> None:
        """The norm of a vector of `width` elements.

        Args:
            names: in the checkpoint, without `.weight`; several for heads whose weights are stored one by one.
            width: of all names; a tuple is the shape in the checkpoint.
            offset: is added to the stored weight, 1 for Gemma.
            scale: multiplies the weight.
            has_weight: False for a norm that only scales.
        """
        self.eps = eps
        self._vectors = []
        if has_weight:
            self._vectors.append(Vector(_with_ending(names, "weight"), width, dtype, device, offset, scale=scale))
        self.weight = self._vectors[0].values if has_weight else torch.ones(width, device=device)

    def __call__(
        self, kernels: KernelSet, x: torch.Tensor, residual: torch.Tensor | None = None, mix: Mix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x, residual: [T, width]. mix: of linear layers. Returns the norm of x + residual, and the sum."""
        return kernels.add_rms_norm(x, residual, self.weight, self.eps)


class LayerNorm(HasVectors):
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
        """The arguments are RMSNorm's. offset: 1 for Nemotron. has_weight: False for OLMo."""
        self.eps = eps
        self._vectors = []
        if has_weight:
            self._vectors.append(Vector(_with_ending(names, "weight"), width, dtype, device, offset))
        self.weight = self._vectors[0].values if has_weight else torch.ones(width, device=device)
        if has_bias:
            self._vectors.append(Vector(_with_ending(names, "bias"), width, dtype, device))
        self.bias = self._vectors[-1].values if has_bias else None

    def __call__(
        self, kernels: KernelSet, x: torch.Tensor, residual: torch.Tensor | None = None, mix: Mix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x, residual: [T, width]. mix: of linear layers. Returns the norm of x + residual, and the sum."""
        return kernels.add_layer_norm(x, residual, self.weight, self.bias, self.eps)


Norm = RMSNorm | LayerNorm


class AnyNorm(Protocol):
    """A norm of this module, or something that has one."""

    def loadables(self) -> Iterator[Loadable]: ...

    def __call__(
        self, kernels: KernelSet, x: torch.Tensor, residual: torch.Tensor | None = None, mix: Mix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


def _with_ending(names: str | Sequence[str], ending: str) -> list[str]:
    each = [names] if isinstance(names, str) else names
    return [f"{name}.{ending}" for name in each]
