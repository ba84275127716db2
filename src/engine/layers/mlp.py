"""Gated feed-forward block: down(silu(gate(x)) * up(x)). Shazeer, arXiv:2002.05202."""

from __future__ import annotations

import torch

from ..kernels import KernelSet
from .linear import Linear
from .norm import RMSNorm


class GatedMLP:
    def __init__(self, gate_up_proj: Linear, down_proj: Linear, kernels: KernelSet) -> None:
        self.gate_up_proj = gate_up_proj
        self.down_proj = down_proj
        self._kernels = kernels

    def __call__(
        self, norm: RMSNorm, hidden: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden, residual: [T, hidden_size]. Returns the block's output for norm(hidden + residual), and the sum."""
        gated, residual = self._kernels.norm_gate_up(hidden, residual, norm.weight, norm.eps, self.gate_up_proj.packed)
        return self.down_proj(gated), residual
