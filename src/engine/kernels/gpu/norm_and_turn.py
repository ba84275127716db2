"""RMS norm of heads, and the rotation of their last elements: a program takes some heads of a token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import dependent, num_warps, wait
from .turned_pairs import check_pairs, turned_pairs

_ELEMENTS = 4096  # of one program


@triton.jit
def _norm_and_turn(
    x, weight, cos_sin, positions, out, eps, token_stride, head_stride, num_heads,
    DIM: tl.constexpr, WIDTH: tl.constexpr, ROTATED: tl.constexpr, HEADS: tl.constexpr, HAS_NORM: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    lanes = tl.arange(0, WIDTH)
    is_there = (heads < num_heads)[:, None] & (lanes < DIM)[None, :]
    source = x + token * token_stride + heads.to(tl.int64)[:, None] * head_stride
    values = tl.load(source + lanes[None, :], mask=is_there, other=0.0).to(tl.float32)
    if HAS_NORM:
        values *= tl.rsqrt(tl.sum(values * values, 1) / DIM + eps)[:, None]
        if HAS_WEIGHT:
            values *= tl.load(weight + lanes, mask=lanes < DIM, other=0.0)[None, :]
    angles = cos_sin + tl.load(positions + token) * ROTATED + tl.zeros([1, 1], tl.int32)
    values = turned_pairs(values, angles, 1.0, HEADS, DIM, WIDTH, ROTATED)
    to = out + (token * num_heads + heads)[:, None] * DIM + lanes[None, :]
    tl.store(to, values.to(out.dtype.element_ty), mask=is_there)


def norm_and_turn_gpu(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float | None, cos_sin: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Computes norm_and_turn_reference. Tokens and heads may have any stride."""
    num_tokens, num_heads, dim = x.shape
    check_pairs(dim, cos_sin)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if num_tokens and num_heads:
        x = x if x.stride(2) == 1 else x.contiguous()
        width = triton.next_power_of_2(dim)
        heads = min(triton.next_power_of_2(num_heads), max(1, _ELEMENTS // width))
        _norm_and_turn[(num_tokens, triton.cdiv(num_heads, heads))](
            x, weight, cos_sin, positions, out, eps or 0.0, x.stride(0), x.stride(1), num_heads,
            DIM=dim, WIDTH=width, ROTATED=cos_sin.shape[1], HEADS=heads, HAS_NORM=eps is not None,
            HAS_WEIGHT=weight is not None, num_warps=num_warps(heads * width), **dependent(),
        )  # fmt: skip
    return out
