"""Attention over a window and compressed vectors: the heads of some queries are the rows of a product.

The keys of a program are first those of the window, in the ring of the sequence or among the keys of the step, then
vectors in the paged cache. With few queries the keys are divided among several programs, whose sums a second kernel
adds. A query that has chosen its vectors shares a program with no other.

In decode steps the token's key is kept in its sequence's ring by one of its programs: it takes the place of a token
that has left the window. In steps with prompts another kernel keeps the keys after this one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..compressed_attention import CompressedStep
from .attention_plan import row_of
from .attention_tile import LOG2_E, PRECISION, add_sinks, fold, width_of
from .keep_rows import keep_rows
from .launch import dependent, is_interpreted, wait
from .turned_pairs import check_pairs, turned_pairs

_MAX_SPLITS = 32  # programs that share the keys of one query


@dataclass(frozen=True, slots=True)
class _Launch:
    rows: int  # queries times heads, in one product
    tile: int  # keys
    warps: int
    stages: int


def _launch(itemsize: int, *, is_decode: bool) -> _Launch:
    if itemsize == 4:  # vectors of 512 elements do not fit into registers
        return _Launch(rows=16, tile=16, warps=16, stages=2)
    if is_decode:
        return _Launch(rows=16, tile=16, warps=4, stages=2)
    # With 64 rows of 512 elements a program spills, with 8 warps as with 16.
    return _Launch(rows=32, tile=32, warps=8, stages=2)


@triton.jit
def _attend_window(
    begin_tile, end_tile, source, first, stop, offset, queries, asked, is_own, scale, most, total, sums,
    DIM: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr, TILE: tl.constexpr, IS_RING: tl.constexpr,
):  # fmt: skip
    """Tiles of the positions from `first` up to `stop`, whose keys are in a ring, or at their positions less `offset`.

    asked: [ROWS], positions of the queries, of which others than is_own see nothing.
    """
    dims = tl.arange(0, WIDTH)
    for tile in range(begin_tile, end_tile):
        places = first + tile * TILE + tl.arange(0, TILE)
        is_there = places < stop
        rows = places % WINDOW if IS_RING else places - offset
        mask = is_there[:, None] & (dims < DIM)[None, :]
        vectors = tl.load(source + rows.to(tl.int64)[:, None] * DIM + dims[None, :], mask=mask, other=0.0)
        distance = asked[:, None] - places[None, :]
        is_seen = is_own[:, None] & is_there[None, :] & (distance >= 0) & (distance < WINDOW)
        most, total, sums = _fold(queries, vectors, is_seen, scale, most, total, sums)
    return most, total, sums


@triton.jit
def _fold(queries, vectors, is_seen, scale, most, total, sums):
    """Adds a tile of vectors, which are keys and values, to the running softmax."""
    vectors = vectors.to(queries.dtype)
    products = tl.dot(queries, tl.trans(vectors), input_precision=PRECISION)
    scores = tl.where(is_seen, products * (scale * LOG2_E), float("-inf"))
    return fold(scores, vectors, most, total, sums)


@triton.jit(do_not_specialize=["num_tokens", "num_rows", "table_stride"])
def _attend_compressed(
    q, keys, sinks, window, cache, chosen, cos_sin, positions, out, part_sums, part_stats, query_start, context_lens,
    seq_slots, block_tables, scale, num_tokens, num_rows, table_stride, slot_stride,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, ROTATED: tl.constexpr, WINDOW: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr, RATE: tl.constexpr, BLOCK_SIZE: tl.constexpr, NUM_CHOSEN: tl.constexpr,
    CHOSEN_WIDTH: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
    KEEPS: tl.constexpr, UPCAST: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """RATE: 0 without vectors. NUM_CHOSEN: 0 if a query attends to all."""
    wait(IS_DEPENDENT)
    first = tl.program_id(0) * TOKENS
    stop = tl.minimum(first + TOKENS, num_tokens)
    lanes = tl.arange(0, ROWS)
    if TOKENS == 1:
        heads = tl.program_id(1) * ROWS + lanes
        tokens = first + tl.zeros([ROWS], tl.int32)
    else:
        heads = lanes % HEADS
        tokens = first + lanes // HEADS
    is_lane = (heads < HEADS) & (tokens < stop)
    dims = tl.arange(0, WIDTH)
    is_dim = (dims < DIM)[None, :]
    at = tokens.to(tl.int64) * HEADS + heads
    is_kept = is_lane[:, None] & is_dim
    queries = tl.load(q + at[:, None] * DIM + dims[None, :], mask=is_kept, other=0.0)
    if UPCAST:
        queries = queries.to(tl.float32)
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, WIDTH], tl.float32)
    num_chosen = 0
    if NUM_CHOSEN:
        picks = tl.arange(0, CHOSEN_WIDTH)
        own = tl.load(chosen + first.to(tl.int64) * NUM_CHOSEN + picks, mask=picks < NUM_CHOSEN, other=-1)
        num_chosen = tl.max(tl.where(own >= 0, picks + 1, 0), 0)
    for row in range(row_of(query_start, num_rows, first, 1), row_of(query_start, num_rows, stop - 1, 1) + 1):
        start, end = tl.load(query_start + row), tl.load(query_start + row + 1)
        slot = tl.load(seq_slots + row).to(tl.int64)
        offset = tl.load(context_lens + row) - end  # of a token's position
        is_own = (tokens >= start) & (tokens < end)
        asked = tokens + offset
        high = tl.minimum(stop, end) + offset  # after the last query's position
        near = tl.maximum(tl.maximum(first, start) + offset - WINDOW + 1, 0)  # first position in a window
        new = tl.maximum(near, start + offset)  # first position whose key is among those of the step
        is_there = (slot >= 0) & (first < end)
        num_old = tl.where(is_there, tl.cdiv(new - near, TILE), 0)
        num_near = num_old + tl.where(is_there, tl.cdiv(high - new, TILE), 0)
        num_far = 0
        if RATE:
            far = num_chosen if NUM_CHOSEN else high // RATE
            num_far = tl.where(is_there, tl.cdiv(far, TILE), 0)
        share = tl.cdiv(num_near + num_far, SPLITS)
        begin_tile = tl.program_id(2) * share
        end_tile = tl.minimum(begin_tile + share, num_near + num_far)
        own_ring = window + slot * slot_stride
        most, total, sums = _attend_window(
            begin_tile, tl.minimum(end_tile, num_old), own_ring, near, new, 0, queries, asked, is_own, scale,
            most, total, sums, DIM, WIDTH, WINDOW, TILE, True,
        )  # fmt: skip
        most, total, sums = _attend_window(
            tl.maximum(begin_tile - num_old, 0), tl.minimum(end_tile, num_near) - num_old, keys, new, high, offset,
            queries, asked, is_own, scale, most, total, sums, DIM, WIDTH, WINDOW, TILE, False,
        )  # fmt: skip
        if RATE:
            table = block_tables + row * table_stride
            for tile in range(tl.maximum(begin_tile - num_near, 0), end_tile - num_near):
                places = tile * TILE + tl.arange(0, TILE)
                groups = places
                if NUM_CHOSEN:
                    to = chosen + first.to(tl.int64) * NUM_CHOSEN + places
                    groups = tl.load(to, mask=places < num_chosen, other=-1).to(tl.int32)
                    is_group = groups >= 0
                    is_seen = is_own[:, None] & is_group[None, :]
                else:
                    is_group = places < far
                    is_seen = is_own[:, None] & (groups[None, :] < ((asked + 1) // RATE)[:, None])
                firsts = groups * RATE
                page = tl.load(table + firsts // BLOCK_SIZE, mask=is_group, other=0).to(tl.int64)
                slots = page * BLOCK_SIZE + firsts % BLOCK_SIZE
                mask = is_group[:, None] & is_dim
                vectors = tl.load(cache + slots[:, None] * TOKEN_STRIDE + dims[None, :], mask=mask, other=0.0)
                most, total, sums = _fold(queries, vectors, is_seen, scale, most, total, sums)
        if KEEPS:
            count = tl.where((tl.program_id(1) + tl.program_id(2) == 0) & is_there, DIM, 0)
            value = tl.load(keys + first.to(tl.int64) * DIM + dims, mask=dims < count)
            tl.store(own_ring + (first + offset) % WINDOW * DIM + dims, value, mask=dims < count)
    if SPLITS == 1:
        total, sums = add_sinks(tl.load(sinks + heads, mask=is_lane, other=0.0), most, total, sums)
        place = tl.load(positions + tokens, mask=is_lane, other=0)
        attended = sums / total[:, None]
        attended = turned_pairs(attended, cos_sin + (place * ROTATED)[:, None], -1.0, ROWS, DIM, WIDTH, ROTATED)
        tl.store(out + at[:, None] * DIM + dims[None, :], attended.to(out.dtype.element_ty), mask=is_kept)
    else:
        at = at * SPLITS + tl.program_id(2)
        tl.store(part_sums + at[:, None] * DIM + dims[None, :], sums, mask=is_kept)
        tl.store(part_stats + at * 2, most, mask=is_lane)
        tl.store(part_stats + at * 2 + 1, total, mask=is_lane)


@triton.jit
def _merge(
    part_sums, part_stats, sinks, cos_sin, positions, out,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, ROTATED: tl.constexpr, SPLITS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Adds the shares of one head of one query, and rotates the result back."""
    wait(IS_DEPENDENT)
    place = tl.program_id(0).to(tl.int64)
    shares = place * SPLITS + tl.arange(0, SPLITS)
    sink = tl.load(sinks + place % HEADS) * LOG2_E
    most = tl.load(part_stats + shares * 2)
    highest = tl.maximum(tl.max(most, 0), sink)
    total = tl.sum(tl.load(part_stats + shares * 2 + 1) * tl.exp2(most - highest), 0) + tl.exp2(sink - highest)
    dims = tl.arange(0, WIDTH)
    is_dim = dims < DIM
    sums = tl.zeros([WIDTH], tl.float32)
    for share in range(SPLITS):
        own = place * SPLITS + share
        factor = tl.exp2(tl.load(part_stats + own * 2) - highest)
        sums += tl.load(part_sums + own * DIM + dims, mask=is_dim, other=0.0) * factor
    angles = cos_sin + tl.load(positions + place // HEADS) * ROTATED + tl.zeros([1, 1], tl.int32)
    attended = turned_pairs((sums / total)[None, :], angles, -1.0, 1, DIM, WIDTH, ROTATED)
    tl.store(out + place * DIM + dims[None, :], attended.to(out.dtype.element_ty), mask=is_dim[None, :])


def attend_compressed_gpu(
    q: torch.Tensor,
    keys: torch.Tensor,
    sinks: torch.Tensor,
    window: torch.Tensor,
    cache: torch.Tensor | None,
    rate: int,
    chosen: torch.Tensor | None,
    cos_sin: torch.Tensor,
    step: CompressedStep,
    programs: int,
) -> torch.Tensor:
    """Computes attend_compressed_reference. programs: how many of them run at the same time on the device.

    The results of tokens that are in no row with a slot are zeros.
    """
    num_tokens, heads, dim = q.shape
    rows = len(step.seq_slots)
    check_pairs(dim, cos_sin)
    if keys.shape != (num_tokens, dim) or window.shape[2] != dim or window.dtype != keys.dtype:
        raise ValueError(f"queries are {tuple(q.shape)}, keys {tuple(keys.shape)}, the window {tuple(window.shape)}")
    out = torch.empty_like(q)
    if not num_tokens or not rows:
        return out.zero_()
    is_decode = step.max_query_len == 1
    launch = _launch(q.element_size(), is_decode=is_decode)
    tokens = 1 if is_decode or chosen is not None else max(1, launch.rows // heads)
    pieces = triton.cdiv(heads, launch.rows)
    most = 0
    if cache is not None:
        most = step.block_tables.shape[1] * cache.shape[2] // rate
        most = most if chosen is None else min(most, chosen.shape[1])
    tiles = triton.cdiv(window.shape[1], launch.tile) + triton.cdiv(most, launch.tile)
    splits = 1
    if is_decode:
        splits = min(programs // (num_tokens * pieces), tiles, _MAX_SPLITS)
        splits = 1 << max(0, splits.bit_length() - 1)
    shares = num_tokens * heads * splits if splits > 1 else 1
    part_sums = torch.empty(shares, dim, dtype=torch.float32, device=q.device)
    part_stats = torch.empty(shares, 2, dtype=torch.float32, device=q.device)
    width = width_of(dim)
    num_chosen = 0 if chosen is None else chosen.shape[1]
    _attend_compressed[(triton.cdiv(num_tokens, tokens), pieces, splits)](
        q, keys, sinks, window, cache, chosen, cos_sin, step.positions, out, part_sums, part_stats, step.query_start,
        step.context_lens, step.seq_slots, step.block_tables, dim**-0.5, num_tokens, rows,
        step.block_tables.stride(0), window.stride(0),
        HEADS=heads, DIM=dim, WIDTH=width, ROTATED=cos_sin.shape[1], WINDOW=window.shape[1],
        TOKEN_STRIDE=0 if cache is None else cache.shape[3], RATE=0 if cache is None else rate,
        BLOCK_SIZE=1 if cache is None else cache.shape[2], NUM_CHOSEN=num_chosen,
        CHOSEN_WIDTH=triton.next_power_of_2(max(1, num_chosen)), TOKENS=tokens, ROWS=launch.rows, TILE=launch.tile,
        SPLITS=splits, KEEPS=is_decode, UPCAST=is_interpreted(), num_warps=launch.warps, num_stages=launch.stages,
        **dependent(),
    )  # fmt: skip
    if splits > 1:
        _merge[(num_tokens * heads,)](
            part_sums, part_stats, sinks, cos_sin, step.positions, out,
            HEADS=heads, DIM=dim, WIDTH=width, ROTATED=cos_sin.shape[1], SPLITS=splits, num_warps=4, **dependent(),
        )  # fmt: skip
    if not is_decode:
        keep_rows(keys, window, step)
    return out
