"""Feed-forward blocks: down(activation(gate(x)) * up(x)), or down(activation(up(x))). Shazeer, arXiv:2002.05202."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...model.activations import Activation
from ..kernels import KernelSet
from .adapter import Adapter
from .linear import Linear, Mix
from .loading import Loadable
from .norm import AnyNorm, RMSNorm


class GatedMLP:
    def __init__(
        self,
        gate_up_proj: Linear,
        down_proj: Linear,
        kernels: KernelSet,
        activation: Activation = "silu",
        limit: float | None = None,
    ) -> None:
        """limit: of the gates and of the size of the ups; None: they have none."""
        self.gate_up_proj = gate_up_proj
        self.down_proj = down_proj
        self._kernels = kernels
        self._activation, self._limit = activation, limit

    def loadables(self) -> Iterator[Loadable]:
        yield self.gate_up_proj
        yield self.down_proj

    def __call__(
        self, norm: AnyNorm, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden, residual: [T, hidden_size]. mix: of the T tokens.

        Returns the block's output for norm(hidden + residual), and the sum.
        """
        if mix is None and self._activation == "silu" and self._limit is None and isinstance(norm, RMSNorm):
            packed = self.gate_up_proj.packed
            gated, residual = self._kernels.norm_gate_up(hidden, residual, norm.weight, norm.eps, packed)
            return self.down_proj(gated), residual
        gate_up, residual = self.gate_up_proj.of_normed(norm, hidden, residual, mix)
        return self._down(gate_up, mix), residual

    def of(self, x: torch.Tensor, mix: Mix | None = None, adapter: Adapter | None = None) -> torch.Tensor:
        """The block's output for x itself, [T, hidden_size]. adapter: of gates and ups."""
        gate_up = self.gate_up_proj(x, mix)
        return self._down(gate_up if adapter is None else adapter(x, gate_up, mix), mix)

    def _down(self, gate_up: torch.Tensor, mix: Mix | None) -> torch.Tensor:
        if self._limit is not None:
            gate_up = self._kernels.limit_gates(gate_up, self._limit)
        return self.down_proj(self._kernels.activate_and_mul(gate_up, self._activation), mix)


class MLP:
    """An MLP without a gate."""

    def __init__(self, up_proj: Linear, down_proj: Linear, kernels: KernelSet, activation: Activation) -> None:
        self.up_proj = up_proj
        self.down_proj = down_proj
        self._kernels = kernels
        self._activation = activation

    def loadables(self) -> Iterator[Loadable]:
        yield self.up_proj
        yield self.down_proj

    def __call__(
        self, norm: AnyNorm, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See GatedMLP."""
        up, residual = self.up_proj.of_normed(norm, hidden, residual, mix)
        return self._down(up, mix), residual

    def of(self, x: torch.Tensor, mix: Mix | None = None) -> torch.Tensor:
        """See GatedMLP.of."""
        return self._down(self.up_proj(x, mix), mix)

    def _down(self, up: torch.Tensor, mix: Mix | None) -> torch.Tensor:
        return self.down_proj(self._kernels.activate(up, self._activation), mix)
