"""The sampler of a step: one token per row of logits, by the parameters of the row's slot.

The same tokens as from ../../sampling/sampler.py, except where rounding of float32 sums decides. Grids and memory
depend only on shapes, and the host reads nothing, so that it can be captured in a CUDA graph. A row is cut into tiles
of BLOCK logits, independent of the batch: a token depends only on its own row. The cost of a row depends on its
parameters:

| row                         | passes over its logits                                                             |
|-----------------------------|------------------------------------------------------------------------------------|
| greedy, temperature         | 1: samples                                                                         |
| min-p                       | 2: finds the largest logit, then samples from the tokens that min-p keeps          |
| top-k, top-p                | 2: finds the largest logit of every group of 64, then lists the candidates; the    |
|                             | rest uses the list                                                                 |
| with too many candidates    | 2, and one for every step of a search: such a row is flatter than language         |
| padding                     | 0                                                                                  |

A pass reads 2 V bytes of bfloat16: 16 us for 256 rows of 151,936 tokens at 4.8 TB/s; penalties read 2 V more, bias 4 V.
Each pass is a launch. The last of a row's programs to finish joins the results of all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .gumbel_max import best_of, row_key, scores_of, token_of_row
from .sample_ranked import least_candidate, sample_ranked_rows
from .sample_row import SamplingColumns, cuts_of, keys_of, values_of, weights_of

BLOCK = 4096  # logits of a tile
GROUP = 64  # logits of which the largest is kept; a power of two
CAPACITY = 16384  # candidates in the list of a row, 8 bytes each
_CHUNK = 2048  # candidates or logits per iteration in the program of a ranked row; at most a tile
_WARPS = 8


class SamplingWorkspace(NamedTuple):
    """Memory by which programs exchange results. One step at a time; tickets are zero between launches."""

    part_tops: torch.Tensor  # [max_rows, tiles] float32, largest value
    part_scores: torch.Tensor  # [max_rows, tiles] float32, best score, or the mass
    part_ids: torch.Tensor  # [max_rows, tiles] int32
    maxima: torch.Tensor  # [max_rows, tiles * groups of a tile] float32
    tops: torch.Tensor  # [max_rows] float32, the row's largest value
    lowests: torch.Tensor  # [max_rows] float32, smallest value that min-p keeps
    leasts: torch.Tensor  # [max_rows] float32, smallest value of a candidate
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
    """block: a power of two, at least GROUP, the same in every step."""
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
    """Stores the best token of a tile, for token_of_row. top: of the tile."""
    score, token = best_of(scores_of(values, ids, top, temperature, key, other_key), ids)
    tl.store(work.part_tops + part, top)
    tl.store(work.part_scores + part, score)
    tl.store(work.part_ids + part, token)


@triton.jit
def _is_last(ticket):
    """Whether all other programs of the row, axis 0 of the grid, have finished. The last one resets the ticket."""
    tl.debug_barrier()  # the stores of all warps are complete before the ticket is taken
    is_last = tl.atomic_add(ticket, 1, sem="acq_rel") == tl.num_programs(0) - 1
    if is_last:
        tl.store(ticket, 0)
    return is_last


@triton.jit
def _survey(
    logits, stride, slots, positions, out, columns, work, vocab_size,
    IS_FAST_PATH: tl.constexpr, IS_KEYED: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """First pass. Samples rows without cuts; for the others finds the largest value and the bound of candidates."""
    tile = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + row)
    if slot >= 0:
        is_cut, is_ranked, temperature, top_k, top_p, min_p = cuts_of(columns, slot, IS_FAST_PATH)
        ids = tile * BLOCK + tl.arange(0, BLOCK)
        values = values_of(logits + row * stride, ids, vocab_size, columns, slot, IS_FAST_PATH)
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
                tl.store(out + row, -1)  # it stays if top is -inf
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
    """Second pass, over rows with cuts. Samples if min-p is the only one; else lists candidates and sums weights."""
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
    is_fast_path: bool,
    is_keyed: bool = False,
) -> None:
    """Writes the sampled tokens.

    Args:
        logits: [R, V] in any float type, rows of any stride. Not changed.
        slots: [R] int32, of the columns; -1 for a padding row.
        positions: [R] int32, index of the sampled token in its sequence, prompt included.
        out: [R] int32; -1 for padding, and if every logit is NaN or -inf.
        is_fast_path: every row is greedy or has only a temperature: one launch.
        is_keyed: the seeds are keys of `noise.row_keys`, and positions are not used.
    """
    num_rows, vocab_size = logits.shape
    if num_rows == 0:
        return
    tiles = workspace.part_tops.shape[1]
    block = workspace.maxima.shape[1] // tiles * GROUP
    arguments = logits, logits.stride(0), slots, positions, out, columns, workspace, vocab_size
    grid = triton.cdiv(vocab_size, block), num_rows
    _survey[grid](
        *arguments,
        IS_FAST_PATH=is_fast_path,
        IS_KEYED=is_keyed,
        BLOCK=block,
        PARTS=tiles,
        GROUP=GROUP,
        num_warps=_WARPS,
    )
    if is_fast_path:
        return
    capacity = workspace.candidates.shape[1]
    _gather[grid](*arguments, IS_KEYED=is_keyed, CAPACITY=capacity, BLOCK=block, PARTS=tiles, num_warps=_WARPS)
    sample_ranked_rows[(num_rows,)](
        *arguments,
        IS_KEYED=is_keyed,
        CAPACITY=capacity,
        BLOCK=block,
        PARTS=tiles,
        CHUNK=min(_CHUNK, block),
        num_warps=_WARPS,
    )
