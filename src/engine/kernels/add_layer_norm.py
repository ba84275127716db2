"""Residual sum followed by LayerNorm."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from .cpu.library import FLOAT, INT64, POINTER, CpuLibrary, pointer

AddLayerNorm = Callable[
    [torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None, float], tuple[torch.Tensor, torch.Tensor]
]


def add_layer_norm_reference(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds the residual, then gives each row a mean of zero and a variance of one.

    Args:
        x: [T, H].
        residual: [T, H] or None.
        weight: [H], in float32 for the C++ kernels.
        bias: as the weight, or None.
        eps: added to the variance.
    Returns:
        (normed [T, H], x + residual [T, H]), in x's dtype; arithmetic in float32, of the rounded sum.

    Source: Layer Normalization, arXiv:1607.06450.
    """
    total = x if residual is None else x + residual
    wide_bias = None if bias is None else bias.float()
    return F.layer_norm(total.float(), weight.shape, weight.float(), wide_bias, eps).to(x.dtype), total


def add_layer_norm_cpu(library: CpuLibrary, dtype: torch.dtype) -> AddLayerNorm:
    empty = library.memory.empty
    call = library.op("add_layer_norm", dtype, [POINTER] * 6 + [INT64, INT64, FLOAT])

    def add_layer_norm(
        x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, width = x.shape
        if (residual is not None and residual.shape != x.shape) or weight.shape != (width,):
            other = None if residual is None else tuple(residual.shape)
            raise ValueError(f"x is {tuple(x.shape)}, residual {other}, weight {tuple(weight.shape)}")
        if bias is not None and bias.shape != weight.shape:
            raise ValueError(f"weight is {tuple(weight.shape)}, bias {tuple(bias.shape)}")
        normed = empty(rows, width, dtype=dtype)
        total = x if residual is None else empty(rows, width, dtype=dtype)
        call(
            pointer(x, dtype),
            None if residual is None else pointer(residual, dtype),
            pointer(weight, torch.float32),
            None if bias is None else pointer(bias, torch.float32),
            normed.data_ptr(),
            total.data_ptr(),
            rows,
            width,
            eps,
        )
        return normed, total

    return add_layer_norm
