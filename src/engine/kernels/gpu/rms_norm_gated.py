"""The gate of a layer's outputs and their norm by group, a program per token and group: one read and one write."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ....model.mixers import GateNorm
from ..rms_norm_gated import Gate, RMSNormGatedWeights
from .launch import dependent, num_warps, wait


@triton.jit
def _gate(
    x, gates, weight, out, width, x_stride, stride, eps,
    SIZE: tl.constexpr, WEIGHT_STRIDE: tl.constexpr, HAS_NORM: tl.constexpr, IS_GATED_FIRST: tl.constexpr,
    IS_SILU: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    is_there = lanes < SIZE
    columns = group * SIZE + lanes
    value = tl.load(x + token * x_stride + columns, mask=is_there, other=0.0)
    gate = tl.load(gates + token * stride + columns, mask=is_there, other=0.0).to(tl.float32)
    gate = (gate if IS_SILU else 1.0) * tl.sigmoid(gate)
    if IS_GATED_FIRST:
        value *= gate
    if HAS_NORM:
        gains = tl.load(weight + group * WEIGHT_STRIDE + lanes, mask=is_there, other=0.0)
        value *= tl.rsqrt(tl.sum(value * value, 0) / SIZE + eps) * gains
    if not IS_GATED_FIRST:
        value *= gate
    tl.store(out + token * width + columns, value.to(out.dtype.element_ty), mask=is_there)


def rms_norm_gated_gpu(
    x: torch.Tensor, projected: torch.Tensor, channels: int, weights: RMSNormGatedWeights
) -> torch.Tensor:
    """Computes rms_norm_gated_reference. Rows may have any stride."""
    tokens, width = x.shape
    if len(projected) != tokens or projected.shape[1] < channels + width or width % weights.groups:
        raise ValueError(f"x is {tuple(x.shape)}, projected {tuple(projected.shape)}, {weights.groups} groups")
    return norm_groups(
        x, projected, channels, weights.weight, weights.order, weights.eps, weights.groups, gate=weights.gate
    )


def norm_groups(
    x: torch.Tensor,
    projected: torch.Tensor,
    channels: int,
    weight: torch.Tensor | None,
    order: GateNorm,
    eps: float,
    groups: int,
    gate: Gate = "silu",
) -> torch.Tensor:
    """Computes rms_norm_gated_reference.

    weight: also of one group, for all of them. gate: what is applied to the gates.
    """
    tokens, width = x.shape
    size = width // groups
    out = torch.empty(tokens, width, dtype=projected.dtype, device=x.device)
    block = triton.next_power_of_2(size)
    if tokens:
        _gate[(tokens, groups)](
            x, projected[:, channels:], weight, out, width, x.stride(0), projected.stride(0), eps,
            SIZE=size, WEIGHT_STRIDE=size if weight is not None and len(weight) == width else 0,
            HAS_NORM=weight is not None, IS_GATED_FIRST=order == "after_gate", IS_SILU=gate == "silu", BLOCK=block,
            num_warps=num_warps(block), **dependent(),
        )  # fmt: skip
    return out
