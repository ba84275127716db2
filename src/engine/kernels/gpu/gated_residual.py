"""The ops on several residual streams of a token: each reads its inputs once, and writes its result once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..gated_residual import check_streams
from .launch import dependent, num_warps, wait

_BLOCK = 1024  # elements of one program, where elements are independent


@triton.jit
def _norm_streams(x, weight, out, count, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr):
    wait(IS_DEPENDENT)
    token, stream = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    is_there = lanes < SIZE
    places = (token * count + stream) * SIZE + lanes
    value = tl.load(x + places, mask=is_there, other=0.0).to(tl.float32)
    gains = tl.load(weight + stream * SIZE + lanes, mask=is_there, other=0.0)
    value *= tl.rsqrt(tl.sum(value * value, 0) / SIZE + eps) * gains
    tl.store(out + places, value.to(out.dtype.element_ty), mask=is_there)


@triton.jit
def _average_streams(
    gates, x, out, size, COUNT: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr
):  # fmt: skip
    wait(IS_DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = columns < size
    total = tl.zeros([BLOCK], tl.float32)
    for stream in tl.static_range(COUNT):
        places = (token * COUNT + stream) * size + columns
        gate = tl.load(gates + places, mask=is_there, other=0.0).to(tl.float32)
        total += tl.sigmoid(gate) * tl.load(x + places, mask=is_there, other=0.0).to(tl.float32)
    tl.store(out + token * size + columns, (total / COUNT).to(out.dtype.element_ty), mask=is_there)


@triton.jit
def _add_to_streams(
    x, added, weights, out, size, scale, COUNT: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr
):  # fmt: skip
    wait(IS_DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = columns < size
    value = tl.load(added + token * size + columns, mask=is_there, other=0.0).to(tl.float32)
    for stream in tl.static_range(COUNT):
        factor = 2 * tl.sigmoid(tl.load(weights + token * COUNT + stream).to(tl.float32) * scale)
        places = (token * COUNT + stream) * size + columns
        total = tl.load(x + places, mask=is_there, other=0.0).to(tl.float32) + factor * value
        tl.store(out + places, total.to(out.dtype.element_ty), mask=is_there)


@triton.jit
def _gate_streams(
    keys, queries, values, out, count, scale, SIZE: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr
):  # fmt: skip
    wait(IS_DEPENDENT)
    token, stream = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    is_there = lanes < SIZE
    places = (token * count + stream) * SIZE + lanes
    key = tl.load(keys + places, mask=is_there, other=0.0).to(tl.float32)
    product = tl.sum(key * tl.load(queries + places, mask=is_there, other=0.0).to(tl.float32), 0) * scale
    root = tl.sqrt(tl.maximum(tl.abs(product), 1e-6))
    gate = tl.sigmoid(tl.where(product > 0, root, tl.where(product < 0, -root, 0.0)))
    value = tl.load(values + token * SIZE + lanes, mask=is_there, other=0.0).to(tl.float32)
    tl.store(out + places, (gate * value).to(out.dtype.element_ty), mask=is_there)


def norm_streams_gpu(streams: torch.Tensor, weight: torch.Tensor, count: int, eps: float) -> torch.Tensor:
    """Computes norm_streams_reference."""
    tokens, width = streams.shape
    check_streams(width, count, len(weight))
    out, block = torch.empty_like(streams), triton.next_power_of_2(width // count)
    if tokens:
        _norm_streams[(tokens, count)](
            streams, weight, out, count, eps,
            SIZE=width // count, BLOCK=block, num_warps=num_warps(block), **dependent(),
        )  # fmt: skip
    return out


def average_streams_gpu(gates: torch.Tensor, streams: torch.Tensor, count: int) -> torch.Tensor:
    """Computes average_streams_reference."""
    tokens, width = streams.shape
    check_streams(width, count, gates.shape[1])
    size = width // count
    out = torch.empty(tokens, size, dtype=streams.dtype, device=streams.device)
    block = min(_BLOCK, triton.next_power_of_2(size))
    if tokens:
        _average_streams[(tokens, triton.cdiv(size, block))](
            gates, streams, out, size, COUNT=count, BLOCK=block, num_warps=4, **dependent(),
        )  # fmt: skip
    return out


def add_to_streams_gpu(streams: torch.Tensor, added: torch.Tensor, weights: torch.Tensor, scale: float) -> torch.Tensor:
    """Computes add_to_streams_reference."""
    (tokens, width), size, count = streams.shape, added.shape[1], weights.shape[1]
    check_streams(width, count, size * count)
    out, block = torch.empty_like(streams), min(_BLOCK, triton.next_power_of_2(size))
    if tokens:
        _add_to_streams[(tokens, triton.cdiv(size, block))](
            streams, added, weights, out, size, scale, COUNT=count, BLOCK=block, num_warps=4, **dependent(),
        )  # fmt: skip
    return out


def gate_streams_gpu(keys: torch.Tensor, queries: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Computes gate_streams_reference."""
    (tokens, width), size = keys.shape, values.shape[1]
    check_streams(width, width // size, queries.shape[1])
    out, block = torch.empty_like(keys), triton.next_power_of_2(size)
    if tokens:
        _gate_streams[(tokens, width // size)](
            keys, queries, values, out, width // size, size**-0.5,
            SIZE=size, BLOCK=block, num_warps=num_warps(block), **dependent(),
        )  # fmt: skip
    return out
