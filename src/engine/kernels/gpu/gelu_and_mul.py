"""GeGLU gate over the fused output of gate_up. No supported model has it, so no KernelSet contains it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from .launch import dependent, wait

_BLOCK = 1024  # elements of one program


def gelu_and_mul_reference(gate_up: torch.Tensor, is_tanh: bool) -> torch.Tensor:
    """gelu(gate) * up, of [T, 2 * I], gate first. Returns [T, I] in the same dtype; arithmetic in float32.

    is_tanh: the approximation by tanh, with which some models were trained; False: the error function.
    Source: Gaussian Error Linear Units, arXiv:1606.08415; GLU Variants Improve Transformer, arXiv:2002.05202.
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.gelu(gate, approximate="tanh" if is_tanh else "none") * up).to(gate_up.dtype)


@triton.jit
def _gelu_and_mul(gate_up, out, width, stride, IS_TANH: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr):
    wait(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = columns < width
    gate = tl.load(gate_up + row * stride + columns, mask=is_there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + width + columns, mask=is_there, other=0.0).to(tl.float32)
    if IS_TANH:
        # (1 + tanh(z)) / 2 is sigmoid(2 * z), with z = sqrt(2 / pi) * (gate + 0.044715 * gate^3)
        share = tl.sigmoid(1.5957691216057308 * gate * (1 + 0.044715 * gate * gate))
    else:
        share = 0.5 * (1 + tl.erf(gate * 0.7071067811865476))
    tl.store(out + row * width + columns, (gate * share * up).to(out.dtype.element_ty), mask=is_there)


def gelu_and_mul_gpu(gate_up: torch.Tensor, is_tanh: bool) -> torch.Tensor:
    """As gelu_and_mul_reference. Any stride of rows."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    block = min(_BLOCK, triton.next_power_of_2(width))
    if rows:
        _gelu_and_mul[(rows, triton.cdiv(width, block))](
            gate_up, out, width, gate_up.stride(0), IS_TANH=is_tanh, BLOCK=block, **dependent()
        )
    return out
