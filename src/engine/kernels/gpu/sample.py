"""The sampler of a step: one token per row of logits, by the parameters of the row's slot.

Same tokens as ../../sampling/sampler.py gives, but where sums of float32 decide. Grids and memory depend on shapes
alone and the host reads nothing, so that a CUDA graph can hold it. A row is cut into tiles of BLOCK logits, whatever
the batch is: a token depends on its own row alone. A row costs what it asks for:

| row                         | passes over its logits                                                             |
|-----------------------------|------------------------------------------------------------------------------------|
| greedy, temperature         | 1: the draw                                                                        |
| min-p                       | 2: the largest logit, then the draw from what may be drawn                         |
| top-k, top-p                | 2: the largest logit of every group of 64, then the list of the tokens that may be |
|                             | in question; the rest is done in the list                                          |
| their list is too long      | 2, and one for every step of a search: such a row is flatter than language         |
| padding                     | 0                                                                                  |

A pass reads 2 V bytes of bfloat16: 16 us for 256 rows of 151,936 tokens at 4.8 TB/s; penalties read 2 V more, bias 4 V.
Each pass is a launch. Of a row's programs the last one to arrive joins what all have found.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .draw import best_of, row_key, scores_of, token_of_row
from .sample_ranked import draw_ranked, least_candidate
from .sample_row import SamplingColumns, cuts_of, keys_of, values_of, weights_of

BLOCK = 4096  # logits of a tile
GROUP = 64  # of which the largest is kept: a power of two
CAPACITY = 16384  # candidates of a row that are listed, 8 bytes each
_CHUNK = 2048  # candidates, or logits, that the program of a ranked row goes over at once, or a tile if that is less
_WARPS = 8


class SamplingWorkspace(NamedTuple):
    """What programs leave for each other. One step at a time; tickets are zero between launches."""

    part_tops: torch.Tensor  # [max_rows, tiles] float32, largest value
    part_scores: torch.Tensor  # [max_rows, tiles] float32, best score, or the mass
    part_ids: torch.Tensor  # [max_rows, tiles] int32
    maxima: torch.Tensor  # [max_rows, tiles * groups of a tile] float32
    tops: torch.Tensor  # [max_rows] float32, the row's largest value
    lowests: torch.Tensor  # [max_rows] float32, that min-p allows
    leasts: torch.Tensor  # [max_rows] float32, that a candidate can have
    counts: torch.Tensor  # [max_rows] int32, candidates
    candidates: torch.Tensor  # [max_rows, capacity] int64 keys, in any order
    tickets: torch.Tensor  # [max_rows] int32


def sampling_workspace(
    max_rows: int,
    vocab_size: int,
    device: torch.device | str,
    block: int = BLOCK,
    capacity: int = CAPACITY,
) -> SamplingWorkspace:
    """block: a power of two, not less than GROUP, of which every step must have the same."""
    tiles = triton.next_power_of_2(triton.cdiv(vocab_size, block))

    def floats(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device=device)

    def words(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    return SamplingWorkspace(
        part_tops=floats(max_rows, tiles),
        part_scores=floats(max_rows, tiles),
        part_ids=words(max_rows, tiles),
        maxima=floats(max_rows, tiles * block // GROUP),
        tops=floats(max_rows),
        lowests=floats(max_rows),
        leasts=floats(max_rows),
        counts=words(max_rows),
        candidates=torch.empty(max_rows, capacity, dtype=torch.int64, device=device),
        tickets=words(max_rows),
    )


@triton.jit
def _put_best(part, values, ids, top, temperature, key, other_key, work):
    """A tile's winner, for token_of_row. top: the tile's."""
    score, token = best_of(scores_of(values, ids, top, temperature, key, other_key), ids)
    tl.store(work.part_tops + part, top)
    tl.store(work.part_scores + part, score)
    tl.store(work.part_ids + part, token)


@triton.jit
def _is_last(ticket):
    """Whether all other programs of the row, axis 0 of the grid, are done. Leaves the ticket as it was before them."""
    tl.debug_barrier()  # what all warps have written is out before the ticket is taken
    is_last = tl.atomic_add(ticket, 1, sem="acq_rel") == tl.num_programs(0) - 1
    if is_last:
        tl.store(ticket, 0)
    return is_last


@triton.jit
def _survey(
    logits, stride, slots, positions, out, columns, work, vocab_size,
    IS_LEAN: tl.constexpr, IS_KEYED: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """First pass. Draws where all tokens may be drawn; else finds the largest value, and what may be a candidate."""
    tile = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + row)
    if slot >= 0:
        is_cut, is_ranked, temperature, top_k, top_p, min_p = cuts_of(columns, slot, IS_LEAN)
        ids = tile * BLOCK + tl.arange(0, BLOCK)
        values = values_of(logits + row * stride, ids, vocab_size, columns, slot, IS_LEAN)
        top = tl.max(values, 0)
        part = row * PARTS + tile
        groups: tl.constexpr = BLOCK // GROUP
        if is_cut:
            tl.store(work.part_tops + part, top)
            if is_ranked:
                maxima = tl.max(tl.reshape(values, [groups, GROUP]), 1)
                tl.store(work.maxima + part * groups + tl.arange(0, groups), maxima)
                if top_k <= 0:
                    tl.store(work.part_scores + part, tl.sum(weights_of(values, top, temperature), 0))
        else:
            key, other_key = row_key(
                tl.load(columns.seed_low + slot), tl.load(columns.seed_high + slot), tl.load(positions + row), IS_KEYED
            )
            _put_best(part, values, ids, top, temperature, key, other_key, work)
        if _is_last(work.tickets + row):
            tiles = tl.arange(0, PARTS)
            is_there = tiles < tl.num_programs(0)
            parts = row * PARTS + tiles
            if is_cut:
                tops = tl.load(work.part_tops + parts, mask=is_there, other=float("-inf"), cache_modifier=".cg")
                top = tl.max(tops, 0)
                lowest = tl.full([], float("-inf"), tl.float32)
                if min_p > 0:
                    lowest = top + temperature * tl.log(min_p)
                least = lowest
                if is_ranked & (top > float("-inf")):
                    mass = tl.full([], 0.0, tl.float32)
                    if top_k <= 0:
                        masses = tl.load(work.part_scores + parts, mask=is_there, other=0.0, cache_modifier=".cg")
                        mass = tl.sum(masses * weights_of(tops, top, temperature), 0)
                    lanes = tl.arange(0, PARTS * groups)
                    least = tl.maximum(
                        lowest,
                        least_candidate(
                            work.maxima + row * PARTS * groups, lanes, lanes < tl.num_programs(0) * groups,
                            top, mass, temperature, top_k, top_p, GROUP,
                        ),
                    )  # fmt: skip
                tl.store(work.tops + row, top)
                tl.store(work.lowests + row, lowest)
                tl.store(work.leasts + row, least)
                tl.store(work.counts + row, 0)
                tl.store(out + row, -1)  # where top is -inf it stays
            else:
                token = token_of_row(work.part_tops, work.part_scores, work.part_ids, parts, is_there, temperature)
                tl.store(out + row, token)
    elif tile == 0:
        tl.store(out + row, -1)


@triton.jit
def _gather(
    logits, stride, slots, positions, out, columns, work, vocab_size,
    IS_KEYED: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Second pass, over rows that are cut. Draws where min-p alone cuts; else lists candidates and weighs the row."""
    tile = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + row)
    if slot >= 0:
        is_cut, is_ranked, temperature, top_k, _, _ = cuts_of(columns, slot, False)
        top = tl.load(work.tops + row)
        if is_cut & (top > float("-inf")):
            ids = tile * BLOCK + tl.arange(0, BLOCK)
            values = values_of(logits + row * stride, ids, vocab_size, columns, slot, False)
            values = tl.where(values >= tl.load(work.lowests + row), values, float("-inf"))
            part = row * PARTS + tile
            if is_ranked:
                if top_k <= 0:
                    tl.store(work.part_scores + part, tl.sum(weights_of(values, top, temperature), 0))
                is_candidate = (values >= tl.load(work.leasts + row)) & (values > float("-inf"))
                count = tl.sum(is_candidate.to(tl.int32), 0)
                if count > 0:
                    begin = tl.atomic_add(work.counts + row, count)
                    if begin + count <= CAPACITY:
                        places = row * CAPACITY + begin + tl.cumsum(is_candidate.to(tl.int32), 0) - 1
                        tl.store(work.candidates + places, keys_of(values, ids), mask=is_candidate)
            else:
                key, other_key = row_key(
                    tl.load(columns.seed_low + slot), tl.load(columns.seed_high + slot), tl.load(positions + row),
                    IS_KEYED,
                )  # fmt: skip
                _put_best(part, values, ids, tl.max(values, 0), temperature, key, other_key, work)
                if _is_last(work.tickets + row):
                    tiles = tl.arange(0, PARTS)
                    is_there = tiles < tl.num_programs(0)
                    parts = row * PARTS + tiles
                    token = token_of_row(work.part_tops, work.part_scores, work.part_ids, parts, is_there, temperature)
                    tl.store(out + row, token)


def sample(
    logits: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    columns: SamplingColumns,
    out: torch.Tensor,
    workspace: SamplingWorkspace,
    *,
    is_lean: bool,
    is_keyed: bool = False,
) -> None:
    """Writes the drawn tokens.

    Args:
        logits: [R, V] in any float type, rows of any stride. Not changed.
        slots: [R] int32, of the columns; -1 for a row of padding.
        positions: [R] int32, index of the drawn token in its sequence, prompt included.
        out: [R] int32; -1 for padding, and where no logit is a number above -inf.
        is_lean: every row is greedy or has a temperature, and nothing else: one launch.
        is_keyed: the seeds' words are keys of `noise.row_keys`, and positions are not looked at.
    """
    num_rows, vocab_size = logits.shape
    if num_rows == 0:
        return
    tiles = workspace.part_tops.shape[1]
    block = workspace.maxima.shape[1] // tiles * GROUP
    arguments = logits, logits.stride(0), slots, positions, out, columns, workspace, vocab_size
    grid = triton.cdiv(vocab_size, block), num_rows
    _survey[grid](
        *arguments, IS_LEAN=is_lean, IS_KEYED=is_keyed, BLOCK=block, PARTS=tiles, GROUP=GROUP, num_warps=_WARPS
    )
    if is_lean:
        return
    capacity = workspace.candidates.shape[1]
    _gather[grid](*arguments, IS_KEYED=is_keyed, CAPACITY=capacity, BLOCK=block, PARTS=tiles, num_warps=_WARPS)
    draw_ranked[(num_rows,)](
        *arguments,
        IS_KEYED=is_keyed,
        CAPACITY=capacity,
        BLOCK=block,
        PARTS=tiles,
        CHUNK=min(_CHUNK, block),
        num_warps=_WARPS,
    )
