"""SwiGLU gate: out = silu(gate) * up, over the fused output of the gate_up projection."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

SiluAndMul = Callable[[torch.Tensor], torch.Tensor]


def silu_and_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up: [T, 2 * I], gate first. Returns [T, I] in the same dtype; arithmetic in float32."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)
