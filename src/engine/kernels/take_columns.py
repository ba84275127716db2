"""Columns of a matrix as a matrix of their own, a part of what one linear layer computes, for the next one; and the
columns of several matrices as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .cpu.library import INT64, POINTER, CpuLibrary, pointer

TakeColumns = Callable[[torch.Tensor, int, int], torch.Tensor]
JoinColumns = Callable[[Sequence[torch.Tensor]], torch.Tensor]
PartHalves = Callable[[torch.Tensor], torch.Tensor]


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


def join_columns_reference(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """parts: each [T, columns] of one dtype. Returns [T, columns of all], in the order of the parts."""
    return torch.cat(list(parts), 1)


def join_columns_cpu(library: CpuLibrary) -> JoinColumns:
    """Return the op for elements of any type: bytes are copied."""
    empty = library.memory.empty
    call = library.function("put_columns", [POINTER, POINTER, *[INT64] * 4])

    def join_columns(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        rows, dtype = len(parts[0]), parts[0].dtype
        if any(len(part) != rows for part in parts):
            raise ValueError(f"the parts have different numbers of rows: {[tuple(part.shape) for part in parts]}")
        out = empty(rows, sum(part.shape[1] for part in parts), dtype=dtype)
        first, row_bytes = 0, out.shape[1] * out.itemsize
        for part in parts:
            count = part.shape[1] * out.itemsize
            call(pointer(part, dtype), out.data_ptr(), rows, row_bytes, first, count)
            first += count
        return out

    return join_columns


def part_halves_reference(x: torch.Tensor) -> torch.Tensor:
    """x: [N, 2 * W]. Returns [2 * N, 2 * W]: of each row two, in each of which the other half is zeros."""
    first, second = x.chunk(2, 1)
    zeros = torch.zeros_like(first)
    return torch.cat((first, zeros, zeros, second), 1).view(2 * len(x), x.shape[1])


def part_halves_cpu(library: CpuLibrary) -> PartHalves:
    """Return the op for elements of any type whose zero is of zero bytes: bytes are copied."""
    empty = library.memory.empty
    call = library.function("part_halves", [POINTER, POINTER, INT64, INT64])

    def part_halves(x: torch.Tensor) -> torch.Tensor:
        rows, width = x.shape
        if width % 2:
            raise ValueError(f"x is {tuple(x.shape)}; its rows have no halves")
        out = empty(2 * rows, width, dtype=x.dtype)
        call(pointer(x, x.dtype), out.data_ptr(), rows, width // 2 * x.itemsize)
        return out

    return part_halves
