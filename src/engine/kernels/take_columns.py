"""Columns of a matrix as a matrix of their own: a part of what one linear layer computes, for the next one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cpu.library import INT64, POINTER, CpuLibrary, pointer

TakeColumns = Callable[[torch.Tensor, int, int], torch.Tensor]


def take_columns_reference(x: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """x: [T, at least first + count]. Returns its columns from `first` on, [T, count] in x's dtype, contiguous."""
    if first + count > x.shape[1]:
        raise ValueError(f"x is {tuple(x.shape)}; it has no columns {first} to {first + count}")
    return x[:, first : first + count].contiguous()


def take_columns_cpu(library: CpuLibrary) -> TakeColumns:
    """Return the op for elements of any type: bytes are copied."""
    empty = library.memory.empty
    call = library.function("take_columns", [POINTER, POINTER, *[INT64] * 4])

    def take_columns(x: torch.Tensor, first: int, count: int) -> torch.Tensor:
        if first + count > x.shape[1]:
            raise ValueError(f"x is {tuple(x.shape)}; it has no columns {first} to {first + count}")
        out, size = empty(len(x), count, dtype=x.dtype), x.itemsize
        call(pointer(x, x.dtype), out.data_ptr(), len(x), x.shape[1] * size, first * size, count * size)
        return out

    return take_columns
