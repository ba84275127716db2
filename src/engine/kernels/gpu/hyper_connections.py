"""Hyper-connections: the products of a connection by parts of the columns, then the rest by parts of a stream."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..hyper_connections import Connection, check_streams
from .launch import dependent, num_warps, wait

_TOKENS = 16  # of a program that multiplies: tl.dot multiplies no fewer
_DEPTH = 64  # columns that are multiplied at once
_CHUNK = 1024  # columns of a program that multiplies
_BLOCK = 1024  # elements of a stream of other programs


@triton.jit
def _multiply_streams(
    streams, matrix, parts, num_tokens, width,
    ROWS: tl.constexpr, ROWS_WIDTH: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr, CHUNK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Products with all rows, and then the sum of squares, of each token and chunk: [tokens, chunks, ROWS + 1]."""
    wait(IS_DEPENDENT)
    tokens = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    chunk, num_chunks = tl.program_id(1), tl.num_programs(1)
    rows = tl.arange(0, ROWS_WIDTH)
    is_token, is_row = tokens < num_tokens, rows < ROWS
    sums = tl.zeros([TOKENS, ROWS_WIDTH], tl.float32)
    squares = tl.zeros([TOKENS], tl.float32)
    for begin in range(0, CHUNK, DEPTH):
        columns = chunk * CHUNK + begin + tl.arange(0, DEPTH)
        is_column = (columns < width)[None, :]
        x = tl.load(streams + tokens[:, None] * width + columns[None, :], mask=is_token[:, None] & is_column, other=0.0)
        x = x.to(tl.float32)
        own = tl.load(matrix + rows[:, None] * width + columns[None, :], mask=is_row[:, None] & is_column, other=0.0)
        sums += tl.dot(x, tl.trans(own), input_precision="ieee")
        squares += tl.sum(x * x, 1)
    to = parts + (tokens * num_chunks + chunk) * (ROWS + 1)
    tl.store(to[:, None] + rows[None, :], sums, mask=is_token[:, None] & is_row[None, :])
    tl.store(to + ROWS, squares, mask=is_token)


@triton.jit
def _total(parts, rows, is_row, num_chunks, CHUNKS: tl.constexpr, STRIDE: tl.constexpr):
    """The sums of all chunks of one token, for these rows."""
    chunks = tl.arange(0, CHUNKS)
    mask = (chunks < num_chunks)[:, None] & is_row[None, :]
    return tl.sum(tl.load(parts + chunks[:, None] * STRIDE + rows[None, :], mask=mask, other=0.0), 0)


@triton.jit
def _balanced(logits, is_there, eps, iterations):
    """logits: [N, N], of which `is_there` are elements of the matrix."""
    logits = tl.where(is_there, logits, float("-inf"))
    most = tl.max(logits, 1)
    matrix = tl.exp(logits - tl.where(most == float("-inf"), 0.0, most)[:, None])
    total = tl.sum(matrix, 1)
    matrix = tl.where(is_there, matrix / tl.where(total == 0, 1.0, total)[:, None] + eps, 0.0)
    matrix /= (tl.sum(matrix, 0) + eps)[None, :]
    for _ in range(1, iterations):
        matrix /= (tl.sum(matrix, 1) + eps)[:, None]
        matrix /= (tl.sum(matrix, 0) + eps)[None, :]
    return matrix


@triton.jit
def _read_streams(
    streams, parts, base, scale, out, gains, hidden, num_chunks, norm_eps, eps, output_scale, output_eps, iterations,
    STREAMS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A part of the sum of one token's streams; the first program of a token also writes its gains."""
    wait(IS_DEPENDENT)
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lanes = tl.arange(0, WIDTH)
    is_stream = lanes < STREAMS
    own = parts + token * num_chunks * (ROWS + 1)
    squares = tl.sum(_total(own, ROWS + lanes, lanes == 0, num_chunks, CHUNKS, ROWS + 1), 0)
    norm = tl.rsqrt(squares / (STREAMS * hidden) + norm_eps)
    x = _total(own, lanes, is_stream, num_chunks, CHUNKS, ROWS + 1) * norm * tl.load(scale)
    weights = tl.sigmoid(x + tl.load(base + lanes, mask=is_stream, other=0.0)) + eps
    columns = part * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < hidden
    places = (token * STREAMS + lanes)[:, None] * hidden + columns[None, :]
    values = tl.load(streams + places, mask=is_stream[:, None] & is_column[None, :], other=0.0).to(tl.float32)
    total = tl.sum(values * weights[:, None], 0)
    tl.store(out + token * hidden + columns, total.to(out.dtype.element_ty), mask=is_column)
    if ROWS > STREAMS and part == 0:
        to = gains + token * (ROWS - STREAMS)
        of_output = _total(own, STREAMS + lanes, is_stream, num_chunks, CHUNKS, ROWS + 1) * norm * tl.load(scale + 1)
        of_output += tl.load(base + STREAMS + lanes, mask=is_stream, other=0.0)
        tl.store(to + lanes, output_scale * tl.sigmoid(of_output) + output_eps, mask=is_stream)
        if ROWS > 2 * STREAMS:
            cells = tl.arange(0, WIDTH * WIDTH)
            i, j = cells // WIDTH, cells % WIDTH
            is_cell = (i < STREAMS) & (j < STREAMS)
            rows = 2 * STREAMS + i * STREAMS + j
            logits = _total(own, rows, is_cell, num_chunks, CHUNKS, ROWS + 1) * norm * tl.load(scale + 2)
            logits += tl.load(base + rows, mask=is_cell, other=0.0)
            is_there = is_stream[:, None] & is_stream[None, :]
            matrix = _balanced(tl.reshape(logits, [WIDTH, WIDTH]), is_there, eps, iterations)
            cells_at = STREAMS + lanes[:, None] * STREAMS + lanes[None, :]
            tl.store(to + cells_at, matrix, mask=is_there)


@triton.jit
def _write_streams(
    added, streams, gains, out, hidden,
    STREAMS: tl.constexpr, WIDTH: tl.constexpr, HAS_STREAMS: tl.constexpr, IS_MIXED: tl.constexpr,
    NUM_GAINS: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    lanes, columns = tl.arange(0, WIDTH), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_stream, is_column = lanes < STREAMS, columns < hidden
    mask = is_stream[:, None] & is_column[None, :]
    places = (token * STREAMS + lanes)[:, None] * hidden + columns[None, :]
    value = tl.load(added + token * hidden + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    total = tl.zeros([WIDTH, BLOCK], tl.float32) + value
    if HAS_STREAMS:
        own = gains + token * NUM_GAINS
        total *= tl.load(own + lanes, mask=is_stream, other=0.0)[:, None]
        if IS_MIXED:
            for j in tl.static_range(STREAMS):
                weights = tl.load(own + STREAMS + j * STREAMS + lanes, mask=is_stream, other=0.0)
                before = tl.load(streams + (token * STREAMS + j) * hidden + columns, mask=is_column, other=0.0)
                total += weights[:, None] * before.to(tl.float32)[None, :]
        else:
            total += tl.load(streams + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + places, total.to(out.dtype.element_ty), mask=mask)


def read_streams_gpu(streams: torch.Tensor, connection: Connection) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes read_streams_reference of contiguous streams."""
    rows, width = connection.matrix.shape
    if streams.shape[1] != width or not streams.is_contiguous():
        raise ValueError(f"streams are {tuple(streams.shape)}, the matrix {tuple(connection.matrix.shape)}")
    tokens, count = len(streams), connection.num_streams
    hidden, chunks = width // count, triton.cdiv(width, _CHUNK)
    out = torch.empty(tokens, hidden, dtype=streams.dtype, device=streams.device)
    gains = torch.empty(tokens, connection.num_gains, dtype=torch.float32, device=streams.device)
    if not tokens:
        return out, gains
    parts = torch.empty(tokens, chunks, rows + 1, dtype=torch.float32, device=streams.device)
    _multiply_streams[(triton.cdiv(tokens, _TOKENS), chunks)](
        streams, connection.matrix, parts, tokens, width,
        ROWS=rows, ROWS_WIDTH=max(16, triton.next_power_of_2(rows)), TOKENS=_TOKENS, DEPTH=_DEPTH, CHUNK=_CHUNK,
        num_warps=4, **dependent(),
    )  # fmt: skip
    block = min(_BLOCK, triton.next_power_of_2(hidden))
    _read_streams[(tokens, triton.cdiv(hidden, block))](
        streams, parts, connection.base, connection.scale, out, gains, hidden, chunks, connection.norm_eps,
        connection.eps, connection.output_scale, connection.output_eps, connection.iterations,
        STREAMS=count, WIDTH=triton.next_power_of_2(count), ROWS=rows, CHUNKS=triton.next_power_of_2(chunks),
        BLOCK=block, num_warps=4, **dependent(),
    )  # fmt: skip
    return out, gains


def write_streams_gpu(
    added: torch.Tensor, num_streams: int, streams: torch.Tensor | None = None, gains: torch.Tensor | None = None
) -> torch.Tensor:
    """Computes write_streams_reference of contiguous tensors."""
    check_streams(added, num_streams, streams, gains)
    if not all(each is None or each.is_contiguous() for each in (added, streams, gains)):
        raise ValueError("what is added, streams and gains must be contiguous")
    tokens, hidden = added.shape
    out = torch.empty(tokens, num_streams * hidden, dtype=added.dtype, device=added.device)
    num_gains = 0 if gains is None else gains.shape[1]
    block = min(_BLOCK, triton.next_power_of_2(hidden))
    if tokens:
        _write_streams[(tokens, triton.cdiv(hidden, block))](
            added, streams, gains, out, hidden,
            STREAMS=num_streams, WIDTH=triton.next_power_of_2(num_streams), HAS_STREAMS=streams is not None,
            IS_MIXED=num_gains > num_streams, NUM_GAINS=num_gains, BLOCK=block, num_warps=num_warps(block * 4),
            **dependent(),
        )  # fmt: skip
    return out
