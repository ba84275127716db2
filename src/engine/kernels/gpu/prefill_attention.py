"""Attention of rows with several queries each: chunks of prompts, after the part of the prompt that is in the cache.

A unit of work is a tile of queries of all heads that share a kv head, 128 rows of one product. The programs of a fixed
grid take units in turn; in each row, units with the most keys come first. Only tiles of keys that the diagonal or the
edge of a window cuts are masked.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..attention_variant import PLAIN, AttentionVariant
from ..paged_attention import AttentionStep
from .attention_plan import planned, row_of
from .attention_tile import add_sinks, first_visible, fold, load_tiles, multipliable, score, tile_of, width_of
from .launch import dependent, is_interpreted, wait
from .tuned import tuned

_ROWS = 128  # queries times heads of a group, in one product
_ROW_BYTES = 512  # of longer rows, half as many fit into shared memory


@triton.jit(do_not_specialize=["num_rows"])
def _plan(query_start, ends, num_rows, TOKENS: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr):
    wait(IS_DEPENDENT)
    rows = tl.arange(0, BLOCK)
    is_there = rows < num_rows
    starts = tl.load(query_start + rows, mask=is_there, other=0)
    counts = tl.load(query_start + rows + 1, mask=is_there, other=0) - starts
    tl.store(ends, 0)
    tl.store(ends + 1 + rows, tl.cumsum(tl.where(counts > 1, tl.cdiv(counts, TOKENS), 0), 0), mask=is_there)


@triton.jit
def _attend(
    begin, stop, queries, k_cache, v_cache, table, kv_head, query_positions, length, most, total, sums,
    scale, softcap, head_slopes, first_key, first_keys,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr, IS_MASKED: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
):  # fmt: skip
    for tile in range(begin, stop):
        positions = tile * TILE + tl.arange(0, TILE)
        is_there = positions < length
        if HAS_WINDOW:
            is_there = is_there & (positions >= first_key)  # the pages of earlier keys may have been released
        keys, values = load_tiles(
            k_cache, v_cache, table, kv_head, tile, positions, is_there, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, WIDTH, TILE
        )
        keys, values = keys.to(queries.dtype), values.to(queries.dtype)
        distances = positions[None, :] - query_positions[:, None]
        scores = score(queries, keys, scale, softcap, head_slopes, distances.to(tl.float32), HAS_SOFTCAP, HAS_SLOPES)
        if IS_MASKED:
            is_seen = distances <= 0
            if HAS_WINDOW:
                is_seen = is_seen & (positions[None, :] >= first_keys[:, None])
            scores = tl.where(is_seen, scores, float("-inf"))
        most, total, sums = fold(scores, values, most, total, sums)
    return most, total, sums


@triton.jit(do_not_specialize=["num_rows", "table_stride"])
def _prefill(
    q, k_cache, v_cache, block_tables, query_start, context_lens, ends, out, sinks, slopes,
    scale, softcap, v_scale, window, num_rows, table_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
    HAS_WINDOW: tl.constexpr, IS_CHUNKED: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_SLOPES: tl.constexpr, UPCAST: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    lanes = tl.arange(0, ROWS)
    dims = tl.arange(0, WIDTH)
    for unit in range(tl.program_id(0), tl.load(ends + num_rows) * NUM_KV_HEADS, tl.num_programs(0)):
        kv_head = unit % NUM_KV_HEADS
        row = row_of(ends, num_rows, unit // NUM_KV_HEADS, 1)
        start = tl.load(query_start + row)
        num_queries = tl.load(query_start + row + 1) - start
        length = tl.load(context_lens + row)
        first = (tl.load(ends + row + 1) - 1 - unit // NUM_KV_HEADS) * TOKENS  # a row's last tile comes first
        tokens = first + lanes // GROUP
        heads = kv_head * GROUP + lanes % GROUP
        is_query = (lanes < TOKENS * GROUP) & (tokens < num_queries)
        is_kept = is_query[:, None] & (dims < HEAD_DIM)[None, :]
        places = ((start + tokens).to(tl.int64) * NUM_KV_HEADS * GROUP + heads)[:, None] * HEAD_DIM + dims[None, :]
        queries = multipliable(tl.load(q + places, mask=is_kept, other=0.0), k_cache, UPCAST)
        head_slopes = tl.zeros([ROWS], tl.float32)
        if HAS_SLOPES:
            head_slopes = tl.load(slopes + heads)
        position = length - num_queries + first  # of the tile's first query
        seen = tl.minimum(position + TOKENS, length)  # keys that its last query sees
        query_positions = length - num_queries + tokens
        first_key = 0  # that the tile's first query sees
        first_keys = query_positions  # that each query sees
        edge = 0
        stop = tl.cdiv(seen, TILE)
        if HAS_WINDOW:
            first_key = first_visible(position, window, IS_CHUNKED)
            first_keys = first_visible(query_positions, window, IS_CHUNKED)
            edge = tl.minimum(tl.cdiv(first_visible(seen - 1, window, IS_CHUNKED), TILE), stop)
        diagonal = tl.maximum((position + 1) // TILE, edge)  # tiles between edge and diagonal need no mask
        table = block_tables + row.to(tl.int64) * table_stride
        most = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        sums = tl.zeros([ROWS, WIDTH], tl.float32)
        if HAS_WINDOW:
            most, total, sums = _attend(
                first_key // TILE, edge,
                queries, k_cache, v_cache, table, kv_head, query_positions, length, most, total, sums,
                scale, softcap, head_slopes, first_key, first_keys,
                NUM_KV_HEADS, HEAD_DIM, WIDTH, BLOCK_SIZE, TILE, True, HAS_WINDOW, HAS_SOFTCAP, HAS_SLOPES,
            )  # fmt: skip
        most, total, sums = _attend(
            edge, diagonal, queries, k_cache, v_cache, table, kv_head, query_positions, length, most, total, sums,
            scale, softcap, head_slopes, first_key, first_keys,
            NUM_KV_HEADS, HEAD_DIM, WIDTH, BLOCK_SIZE, TILE, False, HAS_WINDOW, HAS_SOFTCAP, HAS_SLOPES,
        )  # fmt: skip
        most, total, sums = _attend(
            diagonal, stop, queries, k_cache, v_cache, table, kv_head, query_positions, length, most, total, sums,
            scale, softcap, head_slopes, first_key, first_keys,
            NUM_KV_HEADS, HEAD_DIM, WIDTH, BLOCK_SIZE, TILE, True, HAS_WINDOW, HAS_SOFTCAP, HAS_SLOPES,
        )  # fmt: skip
        if HAS_SINKS:
            total, sums = add_sinks(tl.load(sinks + heads), most, total, sums)
        # Padding lanes may have seen no key.
        attended = sums / tl.where(total == 0, 1.0, total)[:, None] * v_scale
        tl.store(out + places, attended.to(out.dtype.element_ty), mask=is_kept)


def prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    step: AttentionStep,
    scale: float,
    out: torch.Tensor,
    programs: int,
    variant: AttentionVariant = PLAIN,
) -> None:
    """Writes the rows of `out` whose rows of the step have more than one query; the others are not changed.

    out: [T, num_heads * D]. programs: size of the grid.
    """
    _, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    num_rows, group = step.context_lens.shape[0], num_heads // num_kv_heads
    if num_rows == 0:
        return
    launch = tuned().prefill_attention
    width = width_of(head_dim)
    most_rows = _ROWS if width * q.element_size() <= _ROW_BYTES else _ROWS // 2
    if group > most_rows:
        raise ValueError(f"{group} heads share a kv head; this kernel takes at most {most_rows}")
    tokens = most_rows // group
    ends = planned(
        step,
        ("prefill", tokens),
        lambda ends, block: _plan[(1,)](step.query_start, ends, num_rows, TOKENS=tokens, BLOCK=block, **dependent()),
    )
    _prefill[(programs,)](
        q, k_cache, v_cache, step.block_tables, step.query_start, step.context_lens, ends, out,
        variant.sinks, variant.slopes, scale * variant.k_scale, variant.softcap or 0.0, variant.v_scale,
        variant.window or 0, num_rows, step.block_tables.stride(0),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, WIDTH=width,
        BLOCK_SIZE=block_size, TILE=tile_of(head_dim, q.element_size()), ROWS=most_rows, TOKENS=tokens,
        HAS_WINDOW=variant.window is not None, IS_CHUNKED=variant.is_chunked, HAS_SOFTCAP=variant.softcap is not None,
        HAS_SINKS=variant.sinks is not None, HAS_SLOPES=variant.slopes is not None, UPCAST=is_interpreted(),
        num_warps=launch.warps, num_stages=launch.stages, **dependent(),
    )  # fmt: skip
