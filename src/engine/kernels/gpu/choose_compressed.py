"""The index over compressed vectors: scores of the vectors that a query may choose from, then the best of these.

A query that sees no more vectors than it may choose has no scores. The scores of others are in memory for a part of the
tokens at a time, because a context has many vectors. The best are found by their bits, eight at a time: a program
counts the scores of its query by these bits, and so finds the bits of the lowest that is chosen.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..compressed_attention import CompressedStep
from ..latent_attention import parts_of
from .attention_plan import row_of
from .attention_tile import PRECISION, width_of
from .keep_rows import load_token
from .launch import dependent, is_interpreted, wait

_ROWS = 128  # queries times heads, in one product of a step with prompts
_ROW_BYTES = 256  # of a longer query, half as many fit into shared memory
_TILE = 64  # vectors
_SCORES = 2048  # that a program reads together
_BITS = 8  # of a score, by which a program counts scores together


@triton.jit(do_not_specialize=["begin", "stop", "num_rows", "table_stride"])
def _score(
    queries, weights, cache, scores, query_start, context_lens, seq_slots, block_tables, begin, stop, num_rows,
    table_stride, weight_stride, max_groups, first,
    HEADS: tl.constexpr, HEAD_ROWS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, TOKEN_STRIDE: tl.constexpr,
    RATE: tl.constexpr, BLOCK_SIZE: tl.constexpr, COUNT: tl.constexpr, TOKENS: tl.constexpr, TILE: tl.constexpr,
    UPCAST: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Programs of some tokens divide the tiles of vectors. Rows of a product are the heads of each token."""
    wait(IS_DEPENDENT)
    first_token = begin + tl.program_id(0) * TOKENS
    end_token = tl.minimum(first_token + TOKENS, stop)
    lanes = tl.arange(0, TOKENS * HEAD_ROWS)
    heads = lanes % HEAD_ROWS
    places = (first_token + lanes // HEAD_ROWS).to(tl.int64)
    is_lane = (heads < HEADS) & (places < stop)
    dims = tl.arange(0, WIDTH)
    is_dim = (dims < DIM)[None, :]
    asked = tl.load(
        queries + (places * HEADS + heads)[:, None] * DIM + dims[None, :], mask=is_lane[:, None] & is_dim, other=0.0
    )
    if UPCAST:
        asked = asked.to(tl.float32)
    weight = tl.load(weights + places * weight_stride + heads, mask=is_lane, other=0.0).to(tl.float32)
    tokens = first_token + tl.arange(0, TOKENS)
    for row in range(
        row_of(query_start, num_rows, first_token, 1), row_of(query_start, num_rows, end_token - 1, 1) + 1
    ):
        start, end = tl.load(query_start + row), tl.load(query_start + row + 1)
        offset = tl.load(context_lens + row) - end
        is_own = (tokens >= start) & (tokens < tl.minimum(end, end_token))
        seen = tl.where(is_own, (tokens + offset + 1) // RATE, 0)
        most = tl.where(tl.load(seq_slots + row) >= 0, tl.max(seen, 0), 0)
        table = block_tables + row * table_stride
        for tile in range(tl.program_id(1), tl.where(most > COUNT, tl.cdiv(most, TILE), 0), tl.num_programs(1)):
            groups = tile * TILE + tl.arange(0, TILE)
            is_group = groups < most
            firsts = groups * RATE
            page = tl.load(table + firsts // BLOCK_SIZE, mask=is_group, other=0).to(tl.int64)
            at = (page * BLOCK_SIZE + firsts % BLOCK_SIZE) * TOKEN_STRIDE + first
            keys = tl.load(cache + at[:, None] + dims[None, :], mask=is_group[:, None] & is_dim, other=0.0)
            products = tl.dot(asked, tl.trans(keys.to(asked.dtype)), input_precision=PRECISION)
            weighted = tl.maximum(products, 0.0) * weight[:, None]
            sums = tl.sum(tl.reshape(weighted, [TOKENS, HEAD_ROWS, TILE]), 1)
            to = scores + (tokens - begin).to(tl.int64)[:, None] * max_groups + groups[None, :]
            tl.store(to, sums, mask=groups[None, :] < seen[:, None])


@triton.jit
def _ordered(scores):
    """float32 as integers without a sign, in the same order. Zeros have the same sign for all vectors of a query."""
    bits = scores.to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, ~bits, bits | 0x80000000)


@triton.jit(do_not_specialize=["begin", "num_rows"])
def _choose(
    scores, chosen, query_start, context_lens, seq_slots, begin, num_rows, max_groups,
    COUNT: tl.constexpr, COUNT_WIDTH: tl.constexpr, RATE: tl.constexpr, BLOCK: tl.constexpr,
    BITS: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A token's choice, in ascending order. Of equal scores the first are chosen."""
    wait(IS_DEPENDENT)
    token = begin + tl.program_id(0)
    _, _, _, slot, offset = load_token(query_start, context_lens, seq_slots, token, num_rows)
    seen = tl.where(slot >= 0, (token + offset + 1) // RATE, 0)
    to = chosen + token.to(tl.int64) * COUNT
    if seen <= COUNT:
        places = tl.arange(0, COUNT_WIDTH)
        tl.store(to + places, tl.where(places < seen, places, -1).to(tl.int64), mask=places < COUNT)
    else:
        scores += tl.program_id(0).to(tl.int64) * max_groups
        lanes = tl.arange(0, BLOCK)
        bins = tl.arange(0, 1 << BITS)
        lowest = tl.full([], 0, tl.uint32)  # the bits of the lowest chosen score that are known
        wanted = tl.full([], COUNT, tl.int32)  # how many with these bits are chosen
        for part in tl.static_range(32 // BITS):
            counts = tl.zeros([1 << BITS], tl.int32)
            for first in range(0, seen, BLOCK):
                is_there = first + lanes < seen
                values = _ordered(tl.load(scores + first + lanes, mask=is_there, other=0.0))
                if part > 0:
                    is_there = is_there & (values >> (32 - BITS * part) == lowest)
                counts += tl.histogram(
                    ((values >> (32 - BITS * (part + 1))) & ((1 << BITS) - 1)).to(tl.int32), 1 << BITS, mask=is_there
                )
            above = tl.sum(counts, 0) - tl.cumsum(counts, 0)
            last = tl.max(tl.where(above + counts >= wanted, bins, 0), 0)
            wanted -= tl.sum(tl.where(bins == last, above, 0), 0)
            lowest = (lowest << BITS) | last.to(tl.uint32)
        num_chosen = tl.full([], 0, tl.int32)
        num_equal = tl.full([], 0, tl.int32)
        for first in range(0, seen, BLOCK):
            groups = first + lanes
            is_there = groups < seen
            values = _ordered(tl.load(scores + groups, mask=is_there, other=0.0))
            is_equal = (is_there & (values == lowest)).to(tl.int32)
            equals = num_equal + tl.cumsum(is_equal, 0)
            is_chosen = is_there & ((values > lowest) | ((is_equal > 0) & (equals <= wanted)))
            places = num_chosen + tl.cumsum(is_chosen.to(tl.int32), 0) - 1
            tl.store(to + places, groups.to(tl.int64), mask=is_chosen)
            num_equal += tl.sum(is_equal, 0)
            num_chosen += tl.sum(is_chosen.to(tl.int32), 0)


def choose_compressed_gpu(
    queries: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    rate: int,
    first: int,
    step: CompressedStep,
    count: int,
    programs: int,
) -> torch.Tensor:
    """Computes choose_compressed_reference. programs: how many of them run at the same time on the device."""
    num_tokens, heads, dim = queries.shape
    rows, block_size = len(step.seq_slots), cache.shape[2]
    shape = num_tokens, count
    if not num_tokens or not rows:
        return torch.full(shape, -1, dtype=torch.int64, device=queries.device)
    chosen = torch.empty(shape, dtype=torch.int64, device=queries.device)
    max_groups = step.block_tables.shape[1] * block_size // rate
    parts = list(parts_of(0, num_tokens, max_groups))
    has_scores = max_groups > count
    size = parts[0][1] * max_groups if has_scores else 1
    scores = torch.empty(size, dtype=torch.float32, device=queries.device)
    head_rows = max(16, triton.next_power_of_2(heads))
    width = width_of(dim)
    is_short = width * queries.element_size() <= _ROW_BYTES
    most_rows, tile = (_ROWS, _TILE) if is_short else (_ROWS // 2, _TILE // 2)
    tokens = 1 if step.max_query_len == 1 else max(1, most_rows // head_rows)
    columns = step.query_start, step.context_lens, step.seq_slots
    for begin, stop in parts:
        tiles = triton.cdiv(stop - begin, tokens)
        if has_scores:
            splits = max(1, min(programs // tiles, triton.cdiv(max_groups, tile)))
            _score[(tiles, splits)](
                queries, weights, cache, scores, *columns, step.block_tables, begin, stop, rows,
                step.block_tables.stride(0), weights.stride(0), max_groups, first,
                HEADS=heads, HEAD_ROWS=head_rows, DIM=dim, WIDTH=width, TOKEN_STRIDE=cache.shape[3], RATE=rate,
                BLOCK_SIZE=block_size, COUNT=count, TOKENS=tokens, TILE=tile, UPCAST=is_interpreted(), num_warps=4,
                num_stages=2, **dependent(),
            )  # fmt: skip
        _choose[(stop - begin,)](
            scores, chosen, *columns, begin, rows, max_groups,
            COUNT=count, COUNT_WIDTH=triton.next_power_of_2(count), RATE=rate, BLOCK=_SCORES, BITS=_BITS,
            num_warps=8, **dependent(),
        )  # fmt: skip
    return chosen
