"""SwiGLU gate: out = silu(gate) * up, over the fused output of the gate_up projection."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from .cpu.library import INT64, POINTER, CpuLibrary, pointer

SiluAndMul = Callable[[torch.Tensor], torch.Tensor]


def silu_and_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up: [T, 2 * I], gate first. Returns [T, I] in the same dtype; arithmetic in float32."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def silu_and_mul_cpu(library: CpuLibrary, dtype: torch.dtype) -> SiluAndMul:
    empty = library.memory.empty
    call = library.op("silu_and_mul", dtype, [POINTER, POINTER, INT64, INT64])

    def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = empty(rows, width, dtype=dtype)
        call(pointer(gate_up, dtype), out.data_ptr(), rows, width)
        return out

    return silu_and_mul
