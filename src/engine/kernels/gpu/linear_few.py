"""Linear layers for few tokens, bound by reading the weights once, with the operations before and after fused in.

Before: the residual sum and RMSNorm. The norm's scale is a factor of the whole row, so it is computed along with the
product and applied at the end: x is read once. After: a bias, or the gate of SwiGLU. Tokens are the rows of one
product.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import dependent, is_interpreted, wait
from .tuned import tuned

MAX_TOKENS = 64  # beyond, a library's product of matrices is as fast
_TILE_BYTES = 16384  # of x, at once: several stages of it and of the weights fit into shared memory


@triton.jit
def _weights(weight, rows, is_output, k, depth):
    return tl.load(weight + rows + k[None, :], mask=is_output[:, None] & (k < depth)[None, :], other=0.0)


@triton.jit
def _add_products(
    weights, others, k, x, residual, norm, total, tokens, is_token, depth, x_stride, sums, ups, squares,
    HAS_NORM: tl.constexpr, HAS_RESIDUAL: tl.constexpr, IS_GATED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Adds the products of columns k of each token. others: the weights of ups, if gated."""
    is_there = is_token[:, None] & (k < depth)[None, :]
    values = tl.load(x + tokens[:, None] * x_stride + k[None, :], mask=is_there, other=0.0)
    if HAS_RESIDUAL:
        places = tokens[:, None] * depth + k[None, :]
        before = tl.load(residual + places, mask=is_there, other=0.0)
        values = (values.to(tl.float32) + before.to(tl.float32)).to(x.dtype.element_ty)
        if tl.program_id(0) == 0:
            tl.store(total + places, values, mask=is_there)
    if HAS_NORM:
        wide = values.to(tl.float32)
        squares += tl.sum(wide * wide, 1)
        gains = tl.load(norm + k, mask=k < depth, other=0.0).to(tl.float32)
        values = (wide * gains[None, :]).to(x.dtype.element_ty)
    if UPCAST:
        values = values.to(tl.float32)
    sums += tl.dot(values, tl.trans(weights.to(values.dtype)), input_precision="ieee")
    if IS_GATED:
        ups += tl.dot(values, tl.trans(others.to(values.dtype)), input_precision="ieee")
    return sums, ups, squares


@triton.jit(do_not_specialize=["num_tokens"])
def _linear_few(
    x, residual, norm, weight, bias, out, total, eps, num_tokens, width, depth, x_stride,
    TOKENS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, HAS_NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr, IS_GATED: tl.constexpr, UPCAST: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    tokens = tl.arange(0, TOKENS)
    is_token = tokens < num_tokens
    is_output = outputs < width
    rows = outputs.to(tl.int64)[:, None] * depth
    of_ups = weight + tl.cast(width, tl.int64) * depth
    sums = tl.zeros([TOKENS, OUTPUTS], tl.float32)
    ups = tl.zeros([TOKENS, OUTPUTS], tl.float32)
    squares = tl.zeros([TOKENS], tl.float32)
    # The first weights are loaded while the previous kernel ends.
    k = tl.arange(0, DEPTH)
    weights = _weights(weight, rows, is_output, k, depth)
    others = weights
    if IS_GATED:
        others = _weights(of_ups, rows, is_output, k, depth)
    wait(IS_DEPENDENT)
    sums, ups, squares = _add_products(
        weights, others, k, x, residual, norm, total, tokens, is_token, depth, x_stride, sums, ups, squares,
        HAS_NORM, HAS_RESIDUAL, IS_GATED, UPCAST,
    )  # fmt: skip
    for begin in range(DEPTH, depth, DEPTH):
        k = begin + tl.arange(0, DEPTH)
        weights = _weights(weight, rows, is_output, k, depth)
        others = weights
        if IS_GATED:
            others = _weights(of_ups, rows, is_output, k, depth)
        sums, ups, squares = _add_products(
            weights, others, k, x, residual, norm, total, tokens, is_token, depth, x_stride, sums, ups, squares,
            HAS_NORM, HAS_RESIDUAL, IS_GATED, UPCAST,
        )  # fmt: skip
    if HAS_NORM:
        scale = tl.rsqrt(squares / depth + eps)[:, None]
        sums *= scale
        ups *= scale
    if HAS_BIAS:
        sums += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
        if IS_GATED:
            ups += tl.load(bias + width + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    if IS_GATED:
        sums = sums * tl.sigmoid(sums) * ups
    places = tokens[:, None] * width + outputs[None, :]
    tl.store(out + places, sums.to(out.dtype.element_ty), mask=is_token[:, None] & is_output[None, :])


def linear_few(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    residual: torch.Tensor | None = None,
    is_gated: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norm(x + residual) @ weight.T + bias, gated or not, for at most MAX_TOKENS rows.

    Args:
        x: [T, K], with any stride of rows.
        weight: [N, K], contiguous; if gated, N / 2 gates first, then N / 2 ups.
        bias: [N] or None.
        norm: [K], weights of RMSNorm, or None; eps is added to its mean square.
        residual: [T, K], contiguous, added before the norm, rounded as add_rms_norm_reference does; or None.
        is_gated: outputs are silu(gate) * up.
    Returns:
        (outputs [T, N], or [T, N / 2] if gated; x + residual [T, K]), in x's dtype; sums in float32.
    """
    num_tokens, depth = x.shape
    width = weight.shape[0] // (1 + is_gated)
    if norm is not None and x.dtype == torch.float16:
        raise ValueError("no norm in float16: products would be rounded before the norm reduces them")
    if num_tokens > MAX_TOKENS or weight.shape[1] != depth or (residual is not None and residual.shape != x.shape):
        raise ValueError(f"x is {tuple(x.shape)}, weight {tuple(weight.shape)}")
    out = torch.empty(num_tokens, width, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty(num_tokens, depth, dtype=x.dtype, device=x.device)
    launch = tuned().linear_of(width)
    tokens = max(16, triton.next_power_of_2(num_tokens))
    deepest = min(_TILE_BYTES // (tokens * x.element_size()), launch.depth if norm is None else launch.norm_depth)
    if is_gated and tokens == 32:
        deepest //= 2  # x is in registers, which would not be enough; with 64 tokens it is in shared memory
    if num_tokens:
        _linear_few[(triton.cdiv(width, launch.outputs),)](
            x, residual, norm, weight, bias, out, total, eps, num_tokens, width, depth, x.stride(0),
            TOKENS=tokens, OUTPUTS=launch.outputs,
            DEPTH=min(deepest, max(16, triton.next_power_of_2(depth))), HAS_NORM=norm is not None,
            HAS_RESIDUAL=residual is not None, HAS_BIAS=bias is not None, IS_GATED=is_gated,
            UPCAST=is_interpreted(), num_warps=launch.warps, num_stages=launch.stages, **dependent(),
        )  # fmt: skip
    return out, total
