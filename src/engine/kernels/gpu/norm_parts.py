"""The norms of the parts of a row, a program per token and part."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..norm_parts import PartNormWeights, Parts, norm_parts_reference
from .launch import dependent, num_warps, wait


@triton.jit
def _norm_parts(
    x, weight, first, second, third, stride, eps,
    FIRST: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr, HAS_WEIGHT: tl.constexpr, BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin, size, out = 0, FIRST, first
    if part == 1:
        begin, size, out = FIRST, SECOND, second
    if part == 2:
        begin, size, out = FIRST + SECOND, THIRD, third
    lanes = tl.arange(0, BLOCK)
    is_there = lanes < size
    value = tl.load(x + token * stride + begin + lanes, mask=is_there, other=0.0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, 0) / size + eps)
    if HAS_WEIGHT:
        value *= tl.load(weight + begin + lanes, mask=is_there, other=0.0)
    tl.store(out + token * size + lanes, value.to(out.dtype.element_ty), mask=is_there)


def norm_parts_gpu(x: torch.Tensor, weights: PartNormWeights) -> Parts:
    """Computes norm_parts_reference. Rows may have any stride."""
    if not weights.has_norm:
        return norm_parts_reference(x, weights)
    weights.check(x)
    first, second, third = (torch.empty(len(x), size, dtype=x.dtype, device=x.device) for size in weights.sizes)
    block = triton.next_power_of_2(max(weights.sizes))
    if len(x):
        _norm_parts[(len(x), 3)](
            x, weights.weight, first, second, third, x.stride(0), weights.eps,
            FIRST=weights.sizes[0], SECOND=weights.sizes[1], THIRD=weights.sizes[2],
            HAS_WEIGHT=weights.weight is not None, BLOCK=block, num_warps=num_warps(block), **dependent(),
        )  # fmt: skip
    return first, second, third
