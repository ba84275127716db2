"""Attention of rows with one query each. Bound by the time to read the cache.

The tiles of all rows and kv heads are numbered consecutively; each program of a fixed grid takes an equal range of
them, so that rows of any lengths are balanced and the grid is the same at every step. A row and head whose tiles belong
to several programs is merged by the last of those to finish: it reads the others' sums from memory and resets the
ticket to zero for the next launch. Heads that share a kv head are the rows of one product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..attention_variant import PLAIN, AttentionVariant
from ..paged_attention import AttentionStep
from .attention_plan import planned, row_of
from .attention_tile import add_sinks, first_visible, fold, load_tiles, multipliable, score, tile_of, width_of
from .launch import dependent, is_interpreted, wait
from .tuned import tuned

_LEAST_ROWS = 16  # of a product of matrices


@triton.jit(do_not_specialize=["num_rows"])
def _plan(
    query_start, context_lens, ends, num_rows, window,
    TILE: tl.constexpr, ROWS: tl.constexpr, HAS_WINDOW: tl.constexpr, IS_CHUNKED: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    rows = tl.arange(0, ROWS)
    is_there = rows < num_rows
    lengths = tl.load(context_lens + rows, mask=is_there, other=0)
    starts = tl.load(query_start + rows, mask=is_there, other=0)
    stops = tl.load(query_start + rows + 1, mask=is_there, other=0)
    tiles = tl.cdiv(lengths, TILE)
    if HAS_WINDOW:
        tiles -= first_visible(tl.maximum(lengths - 1, 0), window, IS_CHUNKED) // TILE
    tl.store(ends, 0)
    tl.store(ends + 1 + rows, tl.cumsum(tl.where(stops - starts == 1, tiles, 0), 0), mask=is_there)


@triton.jit(do_not_specialize=["num_rows", "table_stride"])
def _decode(
    q, k_cache, v_cache, block_tables, query_start, context_lens, ends, out, part_sums, part_stats, tickets,
    sinks, slopes, scale, softcap, k_scale, v_scale, window, num_rows, table_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, HAS_WINDOW: tl.constexpr,
    IS_CHUNKED: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_SLOPES: tl.constexpr, UPCAST: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    program = tl.program_id(0)
    num_units = tl.load(ends + num_rows) * NUM_KV_HEADS
    per_program = tl.maximum(tl.cdiv(num_units, tl.num_programs(0)), 1)
    at = program * per_program
    end = tl.minimum(at + per_program, num_units)
    heads = tl.arange(0, ROWS)
    dims = tl.arange(0, WIDTH)
    is_kept = (heads < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    while at < end:
        row = row_of(ends, num_rows, at, NUM_KV_HEADS)
        first_tile = tl.load(ends + row)
        num_tiles = tl.load(ends + row + 1) - first_tile
        kv_head = (at - first_tile * NUM_KV_HEADS) // num_tiles
        unit = first_tile * NUM_KV_HEADS + kv_head * num_tiles  # the first tile of this row and head
        length = tl.load(context_lens + row)
        first_key = 0
        if HAS_WINDOW:
            first_key = first_visible(length - 1, window, IS_CHUNKED)
        skipped = first_key // TILE  # tiles before the window
        query = tl.load(query_start + row).to(tl.int64) * NUM_KV_HEADS * GROUP + kv_head * GROUP
        places = (query + heads)[:, None] * HEAD_DIM + dims[None, :]
        queries = multipliable(tl.load(q + places, mask=is_kept, other=0.0), k_cache, UPCAST)
        head_slopes = tl.zeros([ROWS], tl.float32)
        if HAS_SLOPES:
            head_slopes = tl.load(slopes + kv_head * GROUP + heads, mask=heads < GROUP, other=0.0)
        most = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        sums = tl.zeros([ROWS, WIDTH], tl.float32)
        begin = at - unit
        stop = tl.minimum(num_tiles, begin + end - at)
        table = block_tables + row.to(tl.int64) * table_stride
        for tile in range(begin + skipped, stop + skipped):
            positions = tile * TILE + tl.arange(0, TILE)
            is_seen = positions < length
            if HAS_WINDOW:
                is_seen = is_seen & (positions >= first_key)
            keys, values = load_tiles(
                k_cache,
                v_cache,
                table,
                kv_head,
                tile,
                positions,
                is_seen,
                NUM_KV_HEADS,
                BLOCK_SIZE,
                HEAD_DIM,
                WIDTH,
                TILE,
            )
            keys, values = keys.to(queries.dtype), values.to(queries.dtype)
            distances = (positions - (length - 1))[None, :].to(tl.float32)
            scores = score(queries, keys, scale * k_scale, softcap, head_slopes, distances, HAS_SOFTCAP, HAS_SLOPES)
            scores = tl.where(is_seen[None, :], scores, float("-inf"))
            most, total, sums = fold(scores, values, most, total, sums)
        first = unit // per_program
        last = (unit + num_tiles - 1) // per_program
        is_mine = first == last
        if first != last:
            slot = (program * 2 + (at != program * per_program).to(tl.int32)).to(tl.int64)
            tl.store(part_sums + (slot * ROWS + heads)[:, None] * WIDTH + dims[None, :], sums)
            tl.store(part_stats + slot * 2 * ROWS + heads, most)
            tl.store(part_stats + (slot * 2 + 1) * ROWS + heads, total)
            tl.debug_barrier()  # the sums of all warps are written before the ticket is taken
            ticket = tickets + row * NUM_KV_HEADS + kv_head
            is_mine = tl.atomic_add(ticket, 1, sem="acq_rel") == last - first
            if is_mine:
                tl.store(ticket, 0)
                most = tl.full([ROWS], float("-inf"), tl.float32)
                total = tl.zeros([ROWS], tl.float32)
                sums = tl.zeros([ROWS, WIDTH], tl.float32)
                for other in range(first, last + 1):
                    # A program has two slots: the first for the unit at the beginning of its range, the second for
                    # one that begins later. Read from the second-level cache, since other programs wrote it.
                    begins_here = (other > first) | (unit == first * per_program)
                    slot = (other * 2 + tl.where(begins_here, 0, 1)).to(tl.int64)
                    their_most = tl.load(part_stats + slot * 2 * ROWS + heads, cache_modifier=".cg")
                    their_total = tl.load(part_stats + (slot * 2 + 1) * ROWS + heads, cache_modifier=".cg")
                    their_sums = tl.load(
                        part_sums + (slot * ROWS + heads)[:, None] * WIDTH + dims[None, :], cache_modifier=".cg"
                    )
                    highest = tl.maximum(most, their_most)
                    base = tl.where(highest == float("-inf"), 0.0, highest)
                    total = total * tl.exp2(most - base) + their_total * tl.exp2(their_most - base)
                    sums = sums * tl.exp2(most - base)[:, None] + their_sums * tl.exp2(their_most - base)[:, None]
                    most = highest
        if is_mine:
            if HAS_SINKS:
                head_sinks = tl.load(sinks + kv_head * GROUP + heads, mask=heads < GROUP, other=0.0)
                total, sums = add_sinks(head_sinks, most, total, sums)
            attended = sums / total[:, None] * v_scale
            tl.store(out + places, attended.to(out.dtype.element_ty), mask=is_kept)
        at += stop - begin


@dataclass(frozen=True, slots=True)
class DecodeWorkspace:
    """Memory by which programs exchange sums. One launch at a time; tickets are zero between launches."""

    part_sums: torch.Tensor  # [2 * programs, ROWS, WIDTH] float32
    part_stats: torch.Tensor  # [2 * programs, 2, ROWS] float32
    tickets: torch.Tensor  # [max_rows * num_kv_heads] int32


def decode_workspace(
    max_rows: int, num_heads: int, num_kv_heads: int, head_dim: int, device: torch.device | str, programs: int
) -> DecodeWorkspace:
    """programs: size of the grid, on a GPU one or two for each multiprocessor."""
    rows, width = _shape(num_heads // num_kv_heads, head_dim)
    return DecodeWorkspace(
        part_sums=torch.empty(2 * programs, rows, width, device=device),
        part_stats=torch.empty(2 * programs, 2, rows, device=device),
        tickets=torch.zeros(max_rows * num_kv_heads, dtype=torch.int32, device=device),
    )


def _shape(group: int, head_dim: int) -> tuple[int, int]:
    """Rows and columns of the product of one kv head's queries."""
    return max(_LEAST_ROWS, triton.next_power_of_2(group)), width_of(head_dim)


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    step: AttentionStep,
    scale: float,
    out: torch.Tensor,
    workspace: DecodeWorkspace,
    variant: AttentionVariant = PLAIN,
) -> None:
    """Writes the rows of `out` whose rows of the step have one query; the others are not changed.

    out: [T, num_heads * D]. The other arguments as for paged_attention_reference and AttentionVariant.
    """
    _, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    num_rows = step.context_lens.shape[0]
    if num_rows == 0:
        return
    launch = tuned().decode_attention
    if num_rows * num_kv_heads > len(workspace.tickets):
        raise ValueError(f"{num_rows} rows, but the workspace is for {len(workspace.tickets) // num_kv_heads}")
    rows, width = _shape(num_heads // num_kv_heads, head_dim)
    tile = tile_of(head_dim, q.element_size())
    window = variant.window or 0
    ends = planned(step, ("decode", variant.window, variant.is_chunked, tile), lambda ends, block: _plan[(1,)](
        step.query_start, step.context_lens, ends, num_rows, window,
        TILE=tile, ROWS=block, HAS_WINDOW=variant.window is not None, IS_CHUNKED=variant.is_chunked, **dependent(),
    ))  # fmt: skip
    _decode[(len(workspace.part_sums) // 2,)](
        q, k_cache, v_cache, step.block_tables, step.query_start, step.context_lens, ends, out,
        workspace.part_sums, workspace.part_stats, workspace.tickets, variant.sinks, variant.slopes,
        scale, variant.softcap or 0.0, variant.k_scale, variant.v_scale, window, num_rows, step.block_tables.stride(0),
        NUM_KV_HEADS=num_kv_heads, GROUP=num_heads // num_kv_heads, HEAD_DIM=head_dim, WIDTH=width,
        BLOCK_SIZE=block_size, TILE=tile, ROWS=rows, HAS_WINDOW=variant.window is not None,
        IS_CHUNKED=variant.is_chunked, HAS_SOFTCAP=variant.softcap is not None, HAS_SINKS=variant.sinks is not None,
        HAS_SLOPES=variant.slopes is not None, UPCAST=is_interpreted(),
        num_warps=launch.warps, num_stages=launch.stages, **dependent(),
    )  # fmt: skip
