"""Sums and products with a constant: scaled residuals, scaled embeddings, scaled and capped logits."""

from __future__ import annotations

from typing import Protocol

import torch

from .cpu.library import FLOAT, INT64, POINTER, CpuLibrary, pointer


class AddScaled(Protocol):
    def __call__(self, x: torch.Tensor, residual: torch.Tensor, scale: float = 1.0, /) -> torch.Tensor: ...


class ScaleAndCap(Protocol):
    def __call__(self, x: torch.Tensor, scale: float = 1.0, softcap: float | None = None, /) -> torch.Tensor: ...


def add_scaled_reference(x: torch.Tensor, residual: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """residual + scale * x, both [T, H], rounded once."""
    return (residual.float() + x.float() * scale).to(x.dtype)


def scale_and_cap_reference(x: torch.Tensor, scale: float = 1.0, softcap: float | None = None) -> torch.Tensor:
    """x * scale, then softcap * tanh of it / softcap, rounded once. x: [T, N]. Source: Gemma 2, arXiv:2408.00118.

    x may be overwritten, because logits are the largest activation of a step: use only the result.
    """
    wide = x.float() * scale
    return x.copy_(wide if softcap is None else softcap * torch.tanh(wide / softcap))


def add_scaled_cpu(library: CpuLibrary, dtype: torch.dtype) -> AddScaled:
    empty = library.memory.empty
    call = library.op("add_scaled", dtype, [POINTER] * 3 + [INT64, FLOAT])

    def add_scaled(x: torch.Tensor, residual: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        if x.shape != residual.shape:
            raise ValueError(f"x is {tuple(x.shape)}, residual {tuple(residual.shape)}")
        out = empty(*x.shape, dtype=dtype)
        call(pointer(x, dtype), pointer(residual, dtype), out.data_ptr(), x.numel(), scale)
        return out

    return add_scaled


def scale_and_cap_cpu(library: CpuLibrary, dtype: torch.dtype) -> ScaleAndCap:
    call = library.op("scale_and_cap", dtype, [POINTER, INT64, FLOAT, FLOAT])

    def scale_and_cap(x: torch.Tensor, scale: float = 1.0, softcap: float | None = None) -> torch.Tensor:
        call(pointer(x, dtype), x.numel(), scale, softcap or 0.0)
        return x

    return scale_and_cap
