"""Attention over latents: one vector per token is the key of all heads, and its first elements their value.

A program takes some heads of one query, which are the rows of one product, and a share of the keys. With few queries
the keys are divided among several programs, whose sums a second kernel adds. The compressed part of a key and its
rotated part are multiplied in two products: the width of each is a power of two, and the width of the key is not.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..paged_attention import AttentionStep
from .attention_plan import row_of
from .attention_tile import LOG2_E, PRECISION, add_sinks, fold, multipliable
from .launch import dependent, is_interpreted, wait

_TILE = 16  # keys
_MAX_ROWS = 32  # heads of a program
_MAX_SUMS = 1 << 14  # elements of their sums, which fit in registers
_MIN_ROWS = 16  # tl.dot multiplies no fewer
_MAX_SPLITS = 32  # programs that share the keys of one query


@triton.jit
def _load_keys(
    cache, table, positions, is_there, first,
    STRIDE: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """SIZE elements of each key, from element `first` on: [TILE, WIDTH], zero in padding."""
    dims = tl.arange(0, WIDTH)
    page = tl.load(table + positions // BLOCK_SIZE, mask=is_there, other=0).to(tl.int64)
    places = (page * BLOCK_SIZE + positions % BLOCK_SIZE) * STRIDE + first
    mask = is_there[:, None] & (dims < SIZE)[None, :]
    return tl.load(cache + places[:, None] + dims[None, :], mask=mask, other=0.0)


@triton.jit
def _load_queries(
    q, token, heads, is_head, first,
    NUM_HEADS: tl.constexpr, STRIDE: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    dims = tl.arange(0, WIDTH)
    places = (token * NUM_HEADS + heads)[:, None] * STRIDE + first + dims[None, :]
    return tl.load(q + places, mask=is_head[:, None] & (dims < SIZE)[None, :], other=0.0)


@triton.jit(do_not_specialize=["window", "num_rows", "table_stride"])
def _attend_latents(
    q, cache, block_tables, query_start, context_lens, sinks, out, part_sums, part_stats, scale, window, num_rows,
    table_stride,
    NUM_HEADS: tl.constexpr, RANK: tl.constexpr, RANK_WIDTH: tl.constexpr, ROTATED: tl.constexpr,
    ROTATED_WIDTH: tl.constexpr, STRIDE: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    ROWS: tl.constexpr, SPLITS: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_WINDOW: tl.constexpr, UPCAST: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    heads = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_head = heads < NUM_HEADS
    row = row_of(query_start, num_rows, token, 1)
    stop = tl.load(query_start + row + 1)
    # Tokens after the last row are padding and see nothing.
    length = tl.where(token < stop, tl.load(context_lens + row) - (stop - 1 - token).to(tl.int32), 0)
    first = tl.maximum(0, length - window) if HAS_WINDOW else 0
    width: tl.constexpr = RANK + ROTATED
    compressed = multipliable(
        _load_queries(q, token, heads, is_head, 0, NUM_HEADS, width, RANK, RANK_WIDTH), cache, UPCAST
    )
    rotated = multipliable(
        _load_queries(q, token, heads, is_head, RANK, NUM_HEADS, width, ROTATED, ROTATED_WIDTH), cache, UPCAST
    )
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, RANK_WIDTH], tl.float32)
    first_tile = first // TILE
    tiles = tl.cdiv(length, TILE)
    per_split = tl.cdiv(tiles - first_tile, SPLITS)
    table = block_tables + row.to(tl.int64) * table_stride
    for tile in range(first_tile + split * per_split, tl.minimum(tiles, first_tile + (split + 1) * per_split)):
        positions = tile * TILE + tl.arange(0, TILE)
        is_seen = (positions < length) & (positions >= first)
        latents = _load_keys(cache, table, positions, is_seen, 0, STRIDE, RANK, RANK_WIDTH, BLOCK_SIZE)
        keys = _load_keys(cache, table, positions, is_seen, RANK, STRIDE, ROTATED, ROTATED_WIDTH, BLOCK_SIZE)
        latents, keys = latents.to(compressed.dtype), keys.to(rotated.dtype)
        products = tl.dot(compressed, tl.trans(latents), input_precision=PRECISION)
        products += tl.dot(rotated, tl.trans(keys), input_precision=PRECISION)
        scores = tl.where(is_seen[None, :], products * (scale * LOG2_E), float("-inf"))
        most, total, sums = fold(scores, latents, most, total, sums)
    dims = tl.arange(0, RANK_WIDTH)
    is_kept = is_head[:, None] & (dims < RANK)[None, :]
    places = token * NUM_HEADS + heads
    if SPLITS == 1:
        if HAS_SINKS:
            own_sinks = tl.load(sinks + heads, mask=is_head, other=0.0)
            total, sums = add_sinks(own_sinks, most, total, sums)
        attended = sums / tl.where(total == 0, 1.0, total)[:, None]
        tl.store(out + places[:, None] * RANK + dims[None, :], attended.to(out.dtype.element_ty), mask=is_kept)
    else:
        places = places * SPLITS + split
        tl.store(part_sums + places[:, None] * RANK + dims[None, :], sums, mask=is_kept)
        tl.store(part_stats + places * 2, most, mask=is_head)
        tl.store(part_stats + places * 2 + 1, total, mask=is_head)


@triton.jit
def _merge(
    part_sums, part_stats, sinks, out, num_heads,
    RANK: tl.constexpr, RANK_WIDTH: tl.constexpr, SPLITS: tl.constexpr, HAS_SINKS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Adds the shares of one head of one query."""
    wait(IS_DEPENDENT)
    place = tl.program_id(0).to(tl.int64)
    shares = place * SPLITS + tl.arange(0, SPLITS)
    most = tl.load(part_stats + shares * 2)
    highest = tl.max(most, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + place % num_heads) * LOG2_E
        highest = tl.maximum(highest, sink)
    factors = tl.exp2(most - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(tl.load(part_stats + shares * 2 + 1) * factors, 0)
    if HAS_SINKS:
        total += tl.exp2(sink - highest)
    dims = tl.arange(0, RANK_WIDTH)
    is_kept = dims < RANK
    sums = tl.zeros([RANK_WIDTH], tl.float32)
    for share in range(SPLITS):
        own = tl.load(part_stats + (place * SPLITS + share) * 2)
        factor = tl.exp2(own - tl.where(highest == float("-inf"), 0.0, highest))
        sums += tl.load(part_sums + (place * SPLITS + share) * RANK + dims, mask=is_kept, other=0.0) * factor
    attended = sums / tl.where(total == 0, 1.0, total)
    tl.store(out + place * RANK + dims, attended.to(out.dtype.element_ty), mask=is_kept)


def latent_attention_gpu(
    q: torch.Tensor,
    cache: torch.Tensor,
    step: AttentionStep,
    scale: float,
    rank: int,
    programs: int,
    sinks: torch.Tensor | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """Computes latent_attention_reference. programs: how many of them run at the same time on the device."""
    num_tokens, num_heads, width = q.shape
    block_size, stride = cache.shape[2:]
    num_rows = step.context_lens.shape[0]
    out = torch.empty(num_tokens, num_heads, rank, dtype=q.dtype, device=q.device)
    if not num_tokens or not num_rows:
        return out
    rank_width = triton.next_power_of_2(rank)
    most = min(_MAX_ROWS, max(_MIN_ROWS, _MAX_SUMS // rank_width))
    rows = min(most, max(_MIN_ROWS, triton.next_power_of_2(num_heads)))
    pieces = triton.cdiv(num_heads, rows)
    splits = min(_MAX_SPLITS, triton.next_power_of_2(max(1, programs // (num_tokens * pieces))))
    shares = num_tokens * num_heads * splits if splits > 1 else 1
    part_sums = torch.empty(shares, rank, dtype=torch.float32, device=q.device)
    part_stats = torch.empty(shares, 2, dtype=torch.float32, device=q.device)
    _attend_latents[(num_tokens, pieces, splits)](
        q, cache, step.block_tables, step.query_start, step.context_lens, sinks, out, part_sums, part_stats, scale,
        window or 0, num_rows, step.block_tables.stride(0),
        NUM_HEADS=num_heads, RANK=rank, RANK_WIDTH=rank_width, ROTATED=width - rank,
        ROTATED_WIDTH=max(16, triton.next_power_of_2(width - rank)), STRIDE=stride, BLOCK_SIZE=block_size, TILE=_TILE,
        ROWS=rows, SPLITS=splits, HAS_SINKS=sinks is not None, HAS_WINDOW=window is not None,
        UPCAST=is_interpreted(), num_warps=8, num_stages=2, **dependent(),
    )  # fmt: skip
    if splits > 1:
        _merge[(num_tokens * num_heads,)](
            part_sums, part_stats, sinks, out, num_heads,
            RANK=rank, RANK_WIDTH=rank_width, SPLITS=splits, HAS_SINKS=sinks is not None, num_warps=4, **dependent()
        )  # fmt: skip
    return out
