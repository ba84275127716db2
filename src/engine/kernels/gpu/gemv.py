"""Linear layers of one or two tokens, bound by reading the weights once: products on ordinary cores, without tensor
cores, whose operands would take a detour over shared memory. The gate of SwiGLU can be applied to the result.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import dependent, wait
from .tuned import GemvLaunch, tuned

MAX_TOKENS = 2  # with more, a library's product of matrices is faster


@triton.jit
def _weights(weight, rows, is_output, k, depth):
    return tl.load(weight + rows + k[None, :], mask=is_output[:, None] & (k < depth)[None, :], other=0.0)


@triton.jit
def _added(sums, weights, values):
    """sums: [TOKENS, OUTPUTS, DEPTH] float32; weights: [OUTPUTS, DEPTH]; values: [TOKENS, DEPTH] float32."""
    return sums + weights.to(tl.float32)[None, :, :] * values[:, None, :]


@triton.jit(do_not_specialize=["num_tokens"])
def _gemv(
    x, weight, bias, out, num_tokens, width, depth, x_stride,
    TOKENS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, HAS_BIAS: tl.constexpr,
    IS_GATED: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    tokens = tl.arange(0, TOKENS)
    is_token, is_output = tokens < num_tokens, outputs < width
    rows = outputs.to(tl.int64)[:, None] * depth
    of_ups = weight + tl.cast(width, tl.int64) * depth
    # The first weights are loaded while the previous kernel ends.
    k = tl.arange(0, DEPTH)
    weights = _weights(weight, rows, is_output, k, depth)
    others = weights
    if IS_GATED:
        others = _weights(of_ups, rows, is_output, k, depth)
    wait(IS_DEPENDENT)
    inputs = x + tokens[:, None] * x_stride
    values = tl.load(inputs + k[None, :], mask=is_token[:, None] & (k < depth)[None, :], other=0.0).to(tl.float32)
    sums = weights.to(tl.float32)[None, :, :] * values[:, None, :]
    ups = sums
    if IS_GATED:
        ups = others.to(tl.float32)[None, :, :] * values[:, None, :]
    for begin in tl.range(DEPTH, depth, DEPTH, num_stages=STAGES):
        k = begin + tl.arange(0, DEPTH)
        values = tl.load(inputs + k[None, :], mask=is_token[:, None] & (k < depth)[None, :], other=0.0).to(tl.float32)
        sums = _added(sums, _weights(weight, rows, is_output, k, depth), values)
        if IS_GATED:
            ups = _added(ups, _weights(of_ups, rows, is_output, k, depth), values)
    result = tl.sum(sums, 2)
    if HAS_BIAS:
        result += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    if IS_GATED:
        up = tl.sum(ups, 2)
        if HAS_BIAS:
            up += tl.load(bias + width + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
        result = result * tl.sigmoid(result) * up
    places = tokens[:, None] * width + outputs[None, :]
    tl.store(out + places, result.to(out.dtype.element_ty), mask=is_token[:, None] & is_output[None, :])


def gemv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    is_gated: bool = False,
    launch: GemvLaunch | None = None,
) -> torch.Tensor:
    """x @ weight.T + bias, gated or not, for at most MAX_TOKENS rows.

    Args:
        x: [T, K], with any stride of rows.
        weight: [N, K], contiguous; if gated, N / 2 gates first, then N / 2 ups.
        bias: [N] or None.
        is_gated: outputs are silu(gate) * up.
        launch: of the kernel; None for the one that was measured for this device.
    Returns:
        [T, N], or [T, N / 2] if gated, in x's dtype; sums in float32.
    """
    num_tokens, depth = x.shape
    width = weight.shape[0] // (1 + is_gated)
    if num_tokens > MAX_TOKENS or weight.shape[1] != depth:
        raise ValueError(f"x is {tuple(x.shape)}, weight {tuple(weight.shape)}")
    out = torch.empty(num_tokens, width, dtype=x.dtype, device=x.device)
    if num_tokens:
        launch = launch or tuned().gemv_of(width)
        tokens = triton.next_power_of_2(num_tokens)
        _gemv[(triton.cdiv(width, launch.outputs),)](
            x, weight, bias, out, num_tokens, width, depth, x.stride(0), TOKENS=tokens, OUTPUTS=launch.outputs,
            DEPTH=min(max(16, launch.depth // tokens), triton.next_power_of_2(depth)), STAGES=launch.stages,
            HAS_BIAS=bias is not None, IS_GATED=is_gated, num_warps=launch.warps, **dependent(),
        )  # fmt: skip
    return out
