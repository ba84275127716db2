"""A norm whose result is multiplied by a gate that is computed from it, through a narrow layer (A.X K2)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..kernels import KernelSet
from .linear import Linear, Mix
from .loading import Loadable
from .norm import Norm


class GatedNorm:
    """y * sigmoid(up(silu(down(y)))), where y is the norm."""

    def __init__(self, norm: Norm, down: Linear, up: Linear) -> None:
        self._norm, self._down, self._up = norm, down, up

    def loadables(self) -> Iterator[Loadable]:
        yield self._norm
        yield self._down
        yield self._up

    def __call__(
        self, kernels: KernelSet, x: torch.Tensor, residual: torch.Tensor | None = None, mix: Mix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See RMSNorm."""
        normed, total = self._norm(kernels, x, residual)
        gates = self._up(kernels.activate(self._down(normed, mix), "silu"), mix)
        return kernels.gate_outputs(normed, gates, gates.shape[1]), total
