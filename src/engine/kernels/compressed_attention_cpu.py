"""The ops of compressed_attention.py in C++: a query has the same results in any batch and any chunk."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .compressed_attention import (
    AttendCompressed,
    ChooseCompressed,
    CompressedStep,
    Compression,
    CompressTokens,
    NormAndTurn,
)
from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer
from .recurrent_step import is_narrow, row_pointers


class CompressedOps(NamedTuple):
    """The ops, by their names in KernelSet."""

    norm_and_turn: NormAndTurn
    compress_tokens: CompressTokens
    choose_compressed: ChooseCompressed
    attend_compressed: AttendCompressed


def compressed_ops_cpu(library: CpuLibrary, dtype: torch.dtype) -> CompressedOps:
    """The ops for a cache in the dtype of the queries, whose vectors have a multiple of 16 elements, at most 512."""
    return CompressedOps(
        _norm_and_turn(library, dtype),
        _compress_tokens(library, dtype),
        _choose_compressed(library, dtype),
        _attend_compressed(library, dtype),
    )


def _norm_and_turn(library: CpuLibrary, dtype: torch.dtype) -> NormAndTurn:
    empty = library.memory.empty
    call = library.op("norm_and_turn", dtype, [*[POINTER] * 5, *[INT64] * 4, INT, FLOAT])

    def norm_and_turn(
        x: torch.Tensor, weight: torch.Tensor | None, eps: float | None, cos_sin: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        rotary_dim, dim = cos_sin.shape[1], x.shape[2]
        if rotary_dim > dim or (weight is not None and len(weight) != dim) or len(positions) != len(x):
            raise ValueError(f"heads are {tuple(x.shape)}, of which {rotary_dim} are rotated, by {len(positions)}")
        out = empty(*x.shape, dtype=dtype)
        call(
            pointer(x, dtype),
            None if weight is None else pointer(weight, torch.float32),
            pointer(cos_sin, torch.float32),
            pointer(positions, torch.int64),
            out.data_ptr(),
            *x.shape,
            rotary_dim,
            eps is not None,
            eps or 0.0,
        )
        return out

    return norm_and_turn


def _compress_tokens(library: CpuLibrary, dtype: torch.dtype) -> CompressTokens:
    pointers = [POINTER, INT64, *[POINTER] * 4, *[INT64] * 3, POINTER, INT64, INT64]
    call = library.op("compress_tokens", dtype, [*pointers, *[POINTER] * 4, *[INT64] * 4, INT, INT, FLOAT])

    def compress_tokens(
        inputs: torch.Tensor,
        compression: Compression,
        cos_sin: torch.Tensor,
        ring: torch.Tensor,
        cache: torch.Tensor,
        first: int,
        step: CompressedStep,
    ) -> None:
        rate, dim = compression.rate, compression.dim
        width, tokens = dim * (1 + compression.overlaps), rate * (1 + compression.overlaps)
        if inputs.shape[1] != 2 * width or ring.shape[1:] != (tokens, 2 * width) or ring.stride(2) != 1:
            raise ValueError(f"inputs are {tuple(inputs.shape)}, those kept {tuple(ring.shape)}, vectors of {dim}")
        if compression.bias.shape != (rate, width) or cos_sin.shape[1] > dim:
            raise ValueError(f"the bias is {tuple(compression.bias.shape)}, for {rate} tokens with {width} gates")
        call(
            *_rows(inputs, dtype),
            pointer(compression.bias, torch.float32),
            pointer(compression.weight, torch.float32),
            pointer(cos_sin, torch.float32),
            ring.data_ptr(),
            ring.stride(0),
            ring.stride(1),
            tokens,
            pointer(cache, dtype),
            first,
            _group_stride(cache, rate, first + dim),
            pointer(step.slot_mapping, torch.int64),
            *row_pointers(step),
            rate,
            dim,
            cos_sin.shape[1],
            compression.overlaps,
            is_narrow(ring),
            compression.eps,
        )

    return compress_tokens


def _choose_compressed(library: CpuLibrary, dtype: torch.dtype) -> ChooseCompressed:
    empty = library.memory.empty
    pointers = [POINTER, POINTER, INT64, *[POINTER] * 5, INT64, POINTER, INT64]
    call = library.op("choose_compressed", dtype, [*pointers, *[INT64] * 7])

    def choose_compressed(
        queries: torch.Tensor,
        weights: torch.Tensor,
        cache: torch.Tensor,
        rate: int,
        first: int,
        step: CompressedStep,
        count: int,
    ) -> torch.Tensor:
        num_tokens, num_heads, dim = queries.shape
        if weights.shape != (num_tokens, num_heads):
            raise ValueError(f"queries are {tuple(queries.shape)}, weights {tuple(weights.shape)}")
        chosen = empty(num_tokens, count, dtype=torch.int64)
        call(
            pointer(queries, dtype),
            *_rows(weights, dtype),
            pointer(cache, dtype),
            chosen.data_ptr(),
            *row_pointers(step),
            pointer(step.block_tables, torch.int32),
            step.block_tables.shape[1],
            num_heads,
            dim,
            rate,
            count,
            cache.shape[2],
            first,
            _group_stride(cache, rate, first + dim),
        )
        return chosen

    return choose_compressed


def _attend_compressed(library: CpuLibrary, dtype: torch.dtype) -> AttendCompressed:
    empty = library.memory.empty
    call = library.op("attend_compressed", dtype, [*[POINTER] * 12, INT64, POINTER, *[INT64] * 9])

    def attend_compressed(
        q: torch.Tensor,
        keys: torch.Tensor,
        sinks: torch.Tensor,
        window: torch.Tensor,
        cache: torch.Tensor | None,
        rate: int,
        chosen: torch.Tensor | None,
        cos_sin: torch.Tensor,
        step: CompressedStep,
    ) -> torch.Tensor:
        num_tokens, num_heads, dim = q.shape
        if keys.shape != (num_tokens, dim) or window.shape[2] != dim or len(sinks) != num_heads:
            shapes = ", ".join(str(tuple(each.shape)) for each in (q, keys, window, sinks))
            raise ValueError(f"queries, keys, window and sinks are {shapes}")
        if dim % 16 or dim > 512 or cos_sin.shape[1] > dim:
            raise ValueError(f"vectors have {dim} elements, of which {cos_sin.shape[1]} are rotated")
        if chosen is not None and len(chosen) != num_tokens:
            raise ValueError(f"there are vectors for {len(chosen)} of {num_tokens} queries")
        out = empty(*q.shape, dtype=dtype)
        call(
            pointer(q, dtype),
            pointer(keys, dtype),
            pointer(sinks, torch.float32),
            pointer(window, dtype),
            None if cache is None else pointer(cache, dtype),
            None if chosen is None else pointer(chosen, torch.int64),
            pointer(cos_sin, torch.float32),
            pointer(step.positions, torch.int64),
            out.data_ptr(),
            *row_pointers(step),
            pointer(step.block_tables, torch.int32),
            step.block_tables.shape[1],
            num_heads,
            dim,
            cos_sin.shape[1],
            window.shape[1],
            rate,
            0 if chosen is None else chosen.shape[1],
            0 if cache is None else cache.shape[2],
            0 if cache is None else _group_stride(cache, rate, dim),
        )
        return out

    return attend_compressed


def _rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[int, int]:
    """The address of a matrix whose rows need not follow each other, and their distance in elements."""
    if x.dtype is not dtype or (x.shape[1] > 1 and x.stride(1) != 1):
        raise ValueError(f"expected rows of {dtype}, got {x.dtype} with strides {x.stride()}")
    return x.data_ptr(), x.stride(0)


def _group_stride(cache: torch.Tensor, rate: int, end: int) -> int:
    """Elements of a group in the cache, of which those before `end` are used."""
    elements = rate * cache.shape[3]
    if cache.shape[2] % rate or end > elements:
        raise ValueError(f"the cache is {tuple(cache.shape)}, for {end} elements of each {rate} tokens")
    return elements
