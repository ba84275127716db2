"""RMSNorm after the residual sum, a program per row: each element is read once and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import dependent, num_warps, wait


@triton.jit
def summed(
    x, residual, total, row, columns, is_there, width, x_stride, residual_stride, HAS_RESIDUAL: tl.constexpr
):  # fmt: skip
    """A row of x, or its sum with the residual, which is stored. float32, of the rounded sum."""
    value = tl.load(x + row * x_stride + columns, mask=is_there, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        value += tl.load(residual + row * residual_stride + columns, mask=is_there, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + row * width + columns, rounded, mask=is_there)
        value = rounded.to(tl.float32)
    return value


@triton.jit
def _add_rms_norm(
    x, residual, weight, normed, total, width, x_stride, residual_stride, eps,
    HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_there = columns < width
    value = summed(x, residual, total, row, columns, is_there, width, x_stride, residual_stride, HAS_RESIDUAL)
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    gain = tl.load(weight + columns, mask=is_there, other=0.0).to(tl.float32)
    tl.store(normed + row * width + columns, (value * scale * gain).to(normed.dtype.element_ty), mask=is_there)


def add_rms_norm_gpu(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes add_rms_norm_reference. Rows may have any stride; the elements of a row are contiguous."""
    rows, width = x.shape
    if (residual is not None and residual.shape != x.shape) or weight.shape != (width,):
        shape = None if residual is None else tuple(residual.shape)
        raise ValueError(f"x is {tuple(x.shape)}, residual {shape}, weight {tuple(weight.shape)}")
    normed = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(normed)
    block = triton.next_power_of_2(width)
    if rows:
        _add_rms_norm[(rows,)](
            x, residual, weight, normed, total, width, x.stride(0), 0 if residual is None else residual.stride(0), eps,
            HAS_RESIDUAL=residual is not None, BLOCK=block, num_warps=num_warps(block), **dependent(),
        )  # fmt: skip
    return normed, total
