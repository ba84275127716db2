"""SwiGLU gate over the fused output of the gate_up projection."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import dependent, wait

_BLOCK = 1024  # elements of one program


@triton.jit
def _silu_and_mul(gate_up, out, width, stride, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr):
    wait(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = columns < width
    gate = tl.load(gate_up + row * stride + columns, mask=is_there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + width + columns, mask=is_there, other=0.0).to(tl.float32)
    gated = gate * tl.sigmoid(gate) * up
    tl.store(out + row * width + columns, gated.to(out.dtype.element_ty), mask=is_there)


def silu_and_mul_gpu(gate_up: torch.Tensor) -> torch.Tensor:
    """As silu_and_mul_reference. Any stride of rows."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    block = min(_BLOCK, triton.next_power_of_2(width))
    if rows:
        _silu_and_mul[(rows, triton.cdiv(width, block))](
            gate_up, out, width, gate_up.stride(0), BLOCK=block, **dependent()
        )
    return out
