"""Copies rows of a matrix in plain order: the lookup of an embedding that is not tied to the output layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from .cpu.library import INT, INT64, POINTER, CpuLibrary, pointer

CopyRows = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def copy_rows_reference(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """table: [N, W]; rows: [T] int64, each in [0, N). Returns [T, W] in table's dtype.

    Raises IndexError for a row that does not exist.
    """
    return F.embedding(rows, table)


def copy_rows_cpu(library: CpuLibrary) -> CopyRows:
    """Return the op for elements of any type: bytes are copied."""
    empty = library.memory.empty
    call = library.function("copy_rows", [POINTER] * 3 + [INT64] * 3, INT)

    def copy_rows(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        out = empty(rows.shape[0], table.shape[1], dtype=table.dtype)
        row_bytes = table.shape[1] * table.itemsize
        sizes = (rows.shape[0], table.shape[0], row_bytes)
        if call(pointer(table, table.dtype), pointer(rows, torch.int64), out.data_ptr(), *sizes):
            raise IndexError(f"a row is not in [0, {table.shape[0]})")
        return out

    return copy_rows
