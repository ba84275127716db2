"""Outputs of a state space times the activation of a gate, and their RMS norm by group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F

from ...model.mixers import GateNorm
from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer

Gate = Literal["silu", "sigmoid"]  # what is applied to the gates
ORDERS: tuple[GateNorm, ...] = ("none", "before_gate", "after_gate")  # as in the enum of cpu/rms_norm_gated.cpp


@dataclass(frozen=True, slots=True)
class RMSNormGatedWeights:
    order: GateNorm
    weight: torch.Tensor | None  # [width] in float32; None without a norm
    eps: float
    groups: int  # of columns that are normed together
    gate: Gate = "silu"


class RMSNormGated(Protocol):
    def __call__(
        self, x: torch.Tensor, projected: torch.Tensor, channels: int, weights: RMSNormGatedWeights, /
    ) -> torch.Tensor: ...


def rms_norm_gated_reference(
    x: torch.Tensor, projected: torch.Tensor, channels: int, weights: RMSNormGatedWeights
) -> torch.Tensor:
    """norm(x * gate), norm(x) * gate, or x * gate, where gate is silu(z) or sigmoid(z).

    Args:
        x: [T, width] in float32. It may be overwritten.
        projected: [T, at least channels + width], the gates z from column `channels` on.
    Returns:
        [T, width] in the dtype of projected; arithmetic in float32.
    """
    given = projected[:, channels : channels + x.shape[1]].float()
    gate = F.silu(given) if weights.gate == "silu" else given.sigmoid()
    if weights.order == "after_gate":
        x = x * gate
    if weights.weight is not None:
        grouped = x.view(len(x), weights.groups, x.shape[1] // weights.groups)
        x = (grouped * torch.rsqrt(grouped.pow(2).mean(-1, keepdim=True) + weights.eps)).view_as(x) * weights.weight
    return (x if weights.order == "after_gate" else x * gate).to(projected.dtype)


def rms_norm_gated_cpu(library: CpuLibrary, dtype: torch.dtype) -> RMSNormGated:
    empty = library.memory.empty
    arguments = [POINTER, POINTER, INT64, POINTER, FLOAT, INT, INT, POINTER, INT64, INT64, INT64]
    call = library.op("rms_norm_gated", dtype, arguments)

    def rms_norm_gated(
        x: torch.Tensor, projected: torch.Tensor, channels: int, weights: RMSNormGatedWeights
    ) -> torch.Tensor:
        tokens, width = x.shape
        if len(projected) != tokens or projected.shape[1] < channels + width or width % weights.groups:
            raise ValueError(f"x is {tuple(x.shape)}, projected {tuple(projected.shape)}, {weights.groups} groups")
        out = empty(tokens, width, dtype=dtype)
        call(
            pointer(x, torch.float32),
            pointer(projected, dtype) + channels * dtype.itemsize,
            projected.shape[1],
            None if weights.weight is None else pointer(weights.weight, torch.float32),
            weights.eps,
            ORDERS.index(weights.order),
            weights.gate == "silu",
            out.data_ptr(),
            tokens,
            width,
            weights.groups,
        )
        return out

    return rms_norm_gated
