"""LayerNorm after the residual sum, a program per row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .add_rms_norm import summed
from .launch import dependent, num_warps, wait


@triton.jit
def _add_layer_norm(
    x, residual, weight, bias, normed, total, width, x_stride, residual_stride, eps,
    HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_there = columns < width
    value = summed(x, residual, total, row, columns, is_there, width, x_stride, residual_stride, HAS_RESIDUAL)
    mean = tl.div_rn(tl.sum(value, 0), width.to(tl.float32))  # an approximate quotient would be off by more than x
    centred = tl.where(is_there, value - mean, 0.0)  # subtracted first: squares of a large mean would lose the rest
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / width + eps)
    result = centred * scale * tl.load(weight + columns, mask=is_there, other=0.0).to(tl.float32)
    if HAS_BIAS:
        result += tl.load(bias + columns, mask=is_there, other=0.0).to(tl.float32)
    tl.store(normed + row * width + columns, result.to(normed.dtype.element_ty), mask=is_there)


def add_layer_norm_gpu(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes add_layer_norm_reference. Rows may have any stride; the elements of a row are contiguous."""
    rows, width = x.shape
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"x is {tuple(x.shape)}, residual {tuple(residual.shape)}")
    if any(each is not None and each.shape != (width,) for each in (weight, bias)):
        raise ValueError(
            f"x is {tuple(x.shape)}, weight {tuple(weight.shape)}, and a bias must be as long as the weight"
        )
    normed = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(normed)
    block = triton.next_power_of_2(width)
    if rows:
        _add_layer_norm[(rows,)](
            x, residual, weight, bias, normed, total, width, x.stride(0),
            0 if residual is None else residual.stride(0), eps, HAS_RESIDUAL=residual is not None,
            HAS_BIAS=bias is not None, BLOCK=block, num_warps=num_warps(block), **dependent(),
        )  # fmt: skip
    return normed, total
