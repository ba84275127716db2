"""Sums and products with a constant, a program per block of a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import dependent, wait

_BLOCK = 1024  # elements of one program


@triton.jit
def _add_scaled(x, residual, out, width, scale, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr):
    wait(IS_DEPENDENT)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = columns < width
    at = tl.program_id(0).to(tl.int64) * width + columns
    value = tl.load(x + at, mask=is_there, other=0.0).to(tl.float32) * scale
    value += tl.load(residual + at, mask=is_there, other=0.0).to(tl.float32)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=is_there)


@triton.jit
def _scale_and_cap(
    x, width, scale, softcap, HAS_SOFTCAP: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr
):  # fmt: skip
    wait(IS_DEPENDENT)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = columns < width
    at = tl.program_id(0).to(tl.int64) * width + columns
    value = tl.load(x + at, mask=is_there, other=0.0).to(tl.float32) * scale
    if HAS_SOFTCAP:
        value = softcap * (2 * tl.sigmoid(value * (2 / softcap)) - 1)
    tl.store(x + at, value.to(x.dtype.element_ty), mask=is_there)


def add_scaled_gpu(x: torch.Tensor, residual: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Computes add_scaled_reference of contiguous tensors."""
    if x.shape != residual.shape:
        raise ValueError(f"x is {tuple(x.shape)}, residual {tuple(residual.shape)}")
    if not (x.is_contiguous() and residual.is_contiguous()):
        raise ValueError("x and residual must be contiguous")
    rows, width = x.shape
    out = torch.empty_like(x)
    if rows:
        _add_scaled[(rows, triton.cdiv(width, _BLOCK))](
            x, residual, out, width, float(scale), BLOCK=_BLOCK, **dependent()
        )
    return out


def scale_and_cap_gpu(x: torch.Tensor, scale: float = 1.0, softcap: float | None = None) -> torch.Tensor:
    """Computes scale_and_cap_reference in place."""
    if not x.is_contiguous():
        raise ValueError("x must be contiguous")
    rows, width = x.shape
    if rows:
        _scale_and_cap[(rows, triton.cdiv(width, _BLOCK))](
            x, width, float(scale), softcap or 1.0, HAS_SOFTCAP=softcap is not None, BLOCK=_BLOCK, **dependent()
        )
    return x
