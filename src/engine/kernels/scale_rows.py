"""Rows times a factor each: the inputs of experts in Llama 4."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cpu.library import INT64, POINTER, CpuLibrary, pointer

ScaleRows = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def scale_rows_reference(x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """x: [T, W]. factors: [T, 1] float32. Returns x * factors in x's dtype, rounded once."""
    return (x.float() * factors).to(x.dtype)


def scale_rows_cpu(library: CpuLibrary, dtype: torch.dtype) -> ScaleRows:
    empty = library.memory.empty
    call = library.op("scale_rows", dtype, [POINTER] * 3 + [INT64] * 2)

    def scale_rows(x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        if factors.shape != (len(x), 1):
            raise ValueError(f"x is {tuple(x.shape)}, factors {tuple(factors.shape)}")
        out = empty(*x.shape, dtype=dtype)
        call(pointer(x, dtype), pointer(factors, torch.float32), out.data_ptr(), *x.shape)
        return out

    return scale_rows
