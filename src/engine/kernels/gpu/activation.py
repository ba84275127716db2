"""Activations of feed-forward blocks, over one projection or over the fused output of gate_up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ....model.activations import Activation
from ..activation import ACTIVATIONS
from .launch import dependent, wait

_BLOCK = 1024  # elements of one program
_SILU, _GELU, _GELU_TANH, _RELU, _RELU2 = (tl.constexpr(number) for number in range(len(ACTIVATIONS)))


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == _SILU:
        return x * tl.sigmoid(x)
    elif ACTIVATION == _GELU:
        return x * (0.5 * (1 + tl.erf(x * 0.7071067811865476)))
    elif ACTIVATION == _GELU_TANH:
        # (1 + tanh(z)) / 2 is sigmoid(2 * z), with z = sqrt(2 / pi) * (x + 0.044715 * x^3)
        return x * tl.sigmoid(1.5957691216057308 * x * (1 + 0.044715 * x * x))
    elif ACTIVATION == _RELU:
        return tl.maximum(x, 0.0)
    else:
        return tl.maximum(x, 0.0) * tl.maximum(x, 0.0)


@triton.jit
def _activate(
    x, out, width, stride, ACTIVATION: tl.constexpr, IS_GATED: tl.constexpr, BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = columns < width
    value = activated(tl.load(x + row * stride + columns, mask=is_there, other=0.0).to(tl.float32), ACTIVATION)
    if IS_GATED:
        value *= tl.load(x + row * stride + width + columns, mask=is_there, other=0.0).to(tl.float32)
    tl.store(out + row * width + columns, value.to(out.dtype.element_ty), mask=is_there)


def activate_and_mul_gpu(gate_up: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    """Computes activate_and_mul_reference. Rows may have any stride."""
    return _run(gate_up, gate_up.shape[1] // 2, activation, is_gated=True)


def activate_gpu(x: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    """Computes activate_reference. Rows may have any stride."""
    return _run(x, x.shape[1], activation, is_gated=False)


def _run(x: torch.Tensor, width: int, activation: Activation, is_gated: bool) -> torch.Tensor:
    rows = len(x)
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    block = min(_BLOCK, triton.next_power_of_2(width))
    if rows:
        _activate[(rows, triton.cdiv(width, block))](
            x, out, width, x.stride(0), ACTIVATION=ACTIVATIONS.index(activation), IS_GATED=is_gated, BLOCK=block,
            **dependent(),
        )  # fmt: skip
    return out
