"""Products of rows: with a factor each (inputs of experts, Llama 4), or with part of another row (inputs of each layer,
Gemma 4)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cpu.library import INT64, POINTER, CpuLibrary, pointer

ScaleRows = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Multiply = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def scale_rows_reference(x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """x: [T, W]. factors: [T, 1] float32. Returns x * factors in x's dtype, rounded once."""
    return (x.float() * factors).to(x.dtype)


def multiply_reference(x: torch.Tensor, others: torch.Tensor, first: int) -> torch.Tensor:
    """x: [T, W]. others: [T, at least first + W], of which W columns from `first` on are multiplied by x.

    Returns [T, W] in x's dtype, rounded once.
    """
    return (x.float() * others[:, first : first + x.shape[1]].float()).to(x.dtype)


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


def multiply_cpu(library: CpuLibrary, dtype: torch.dtype) -> Multiply:
    empty = library.memory.empty
    call = library.op("multiply", dtype, [POINTER, POINTER, INT64, POINTER, INT64, INT64])

    def multiply(x: torch.Tensor, others: torch.Tensor, first: int) -> torch.Tensor:
        rows, width = x.shape
        if len(others) != rows or not 0 <= first <= others.shape[1] - width:
            raise ValueError(f"x is {tuple(x.shape)}, others {tuple(others.shape)} from column {first} on")
        out = empty(rows, width, dtype=dtype)
        from_first = pointer(others, dtype) + first * dtype.itemsize
        call(pointer(x, dtype), from_first, others.shape[1], out.data_ptr(), rows, width)
        return out

    return multiply
