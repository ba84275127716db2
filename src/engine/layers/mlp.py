"""Gated feed-forward block: down(silu(gate(x)) * up(x)). Shazeer, arXiv:2002.05202."""

from __future__ import annotations

import torch

from ..kernels import KernelSet
from .linear import Linear


class GatedMLP:
    def __init__(self, gate_up_proj: Linear, down_proj: Linear, kernels: KernelSet) -> None:
        self.gate_up_proj = gate_up_proj
        self.down_proj = down_proj
        self._kernels = kernels

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, hidden_size] to the same."""
        return self.down_proj(self._kernels.silu_and_mul(self.gate_up_proj(hidden)))
