"""Residual sum followed by RMSNorm: one pass over the hidden states between two sublayers."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cpu.library import FLOAT, INT64, POINTER, CpuLibrary, pointer

AddRmsNorm = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]


def add_rms_norm_reference(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds the residual, then scales each row to a root mean square of one.

    Args:
        x: [T, H], the output of the sublayer before.
        residual: [T, H], or None at the first layer.
        weight: [H], in float32 for the C++ kernels.
        eps: added to the mean square.
    Returns:
        (normed [T, H], new residual [T, H]), both in x's dtype; arithmetic in float32. The sum is rounded to x's dtype
        before it is normed, so that the norm and the next layer see the same residual.

    Source: Root Mean Square Layer Normalization, arXiv:1910.07467.
    """
    total = x if residual is None else x + residual
    wide = total.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (normed * weight.float()).to(x.dtype), total


def add_rms_norm_cpu(library: CpuLibrary, dtype: torch.dtype) -> AddRmsNorm:
    empty = library.memory.empty
    call = library.op("add_rms_norm", dtype, [POINTER] * 5 + [INT64, INT64, FLOAT])

    def add_rms_norm(
        x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, width = x.shape
        normed = empty(rows, width, dtype=dtype)
        if residual is None:
            call(pointer(x, dtype), None, pointer(weight, torch.float32), normed.data_ptr(), None, rows, width, eps)
            return normed, x
        if residual.shape != x.shape or weight.shape[0] != width:
            raise ValueError(f"x is {tuple(x.shape)}, residual {tuple(residual.shape)}, weight {tuple(weight.shape)}")
        total = empty(rows, width, dtype=dtype)
        call(
            pointer(x, dtype),
            pointer(residual, dtype),
            pointer(weight, torch.float32),
            normed.data_ptr(),
            total.data_ptr(),
            rows,
            width,
            eps,
        )
        return normed, total

    return add_rms_norm
