"""Rows whose tokens are cut by rank, top-k and top-p: finds the candidates and samples among them.

Exact for any logits. The largest logits of all groups of tokens give a bound that the last kept token cannot be below,
without sorting. The few tokens at or above it, the candidates, are listed, and one program per row finds the k-th of
them and the nucleus. If there are too many for the list, that program searches the whole row instead, which is slower.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .gumbel_max import LAST_ID, best_of, row_key, scores_of
from .sample_row import NO_KEY, cuts_of, keys_of, order_of, value_of, values_of, weights_of

# Weights are summed as integers: the order of a list varies, and a sum in float32 depends on it. At most 2**20 weights
# of at most 1 fit; truncating them to integers loses less than float32 would lose in a sum of that length.
_UNIT: tl.constexpr = tl.constexpr(4398046511104.0)  # 2**42
_SLACK: tl.constexpr = tl.constexpr(1e-5)  # share of the mass: more than the error of a float32 sum


@triton.jit
def least_candidate(maxima, lanes, is_there, top, mass, temperature, top_k, top_p, GROUP: tl.constexpr):
    """A value that no token of the first top_k, or without top-k of the nucleus, is below.

    maxima: pointer to the maxima of the row's groups of GROUP tokens. mass: of all weights, except for rounding.

    Found by bisection, to the last 8 bits. At least top_k tokens are at or above a value if top_k maxima are. For
    top-p, the tokens above weigh at least as much as the maxima above, and the tokens below at most GROUP times, for
    each group, the smaller of its maximum and the value.
    """
    values = tl.load(maxima + lanes, mask=is_there, other=float("-inf"), cache_modifier=".cg")
    weights = weights_of(values, top, temperature)
    low = order_of(tl.full([], float("-inf"), tl.float32)).to(tl.int64)
    high = order_of(top).to(tl.int64) + 1
    while high - low > 256:
        middle = low + (high - low) // 2
        value = value_of(middle.to(tl.int32))
        is_above = values >= value
        if top_k > 0:
            is_enough = tl.sum(is_above.to(tl.int32), 0) >= top_k
        else:
            above = tl.sum(tl.where(is_above, weights, 0.0), 0)
            below = tl.sum(tl.minimum(weights, weights_of(value, top, temperature)), 0) * GROUP
            above = tl.maximum(above, mass - below)
            below = tl.minimum(below, mass - above)
            is_enough = above - top_p * (above + below) >= _SLACK * mass
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough, high, middle)
    return value_of(low.to(tl.int32))


@triton.jit
def _keys_at(at, size, is_listed, candidates, logits, vocab_size, columns, slot, CHUNK: tl.constexpr):
    """Keys of candidates `at` and following, or of tokens of the row if there is no list. size: how many there are."""
    lanes = at + tl.arange(0, CHUNK)
    if is_listed:
        keys = tl.load(candidates + lanes, mask=lanes < size, other=NO_KEY)
    else:
        keys = keys_of(values_of(logits, lanes, vocab_size, columns, slot, False), lanes)
    return keys


@triton.jit
def _value_of_key(keys):
    return value_of((keys >> 32).to(tl.int32))


@triton.jit
def _mass_from(
    least, top, temperature, size, is_listed, candidates, logits, vocab_size, columns, slot, CHUNK: tl.constexpr
):
    """The sum of the weights of all keys that are at or above `least`."""
    units = tl.full([], 0, tl.int64)
    for at in range(0, size, CHUNK):
        keys = _keys_at(at, size, is_listed, candidates, logits, vocab_size, columns, slot, CHUNK)
        is_kept = keys >= least
        weights = weights_of(tl.where(is_kept, _value_of_key(keys), top), top, temperature)
        units += tl.sum(tl.where(is_kept, weights * _UNIT, 0.0).to(tl.int64), 0)
    return units.to(tl.float64) / _UNIT


@triton.jit
def sample_ranked_rows(
    logits, stride, slots, positions, out, columns, work, vocab_size,
    IS_KEYED: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Samples the rows that _survey and _gather of sample.py do not, one program each.

    Noise belongs to tokens, so a token that is sampled from more than the nucleus and lies in the nucleus is the one
    that sampling from the nucleus gives. A token outside of it ranks after every token of the nucleus, so the next
    round samples among the tokens that rank before it: 1 + log(1 / top_p) rounds on average, for any logits.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot >= 0:
        _, is_ranked, temperature, top_k, top_p, _ = cuts_of(columns, slot, False)
        top = tl.load(work.tops + row)
        if is_ranked & (top > float("-inf")):
            logits += row * stride
            candidates = work.candidates + row * CAPACITY
            count = tl.load(work.counts + row)
            is_listed = count <= CAPACITY
            size = tl.where(is_listed, count, vocab_size)
            least = order_of(tl.load(work.leasts + row)).to(tl.int64) << 32  # smallest key that may be sampled
            if top_k > 0:
                # Bisection of the keys: few steps, because it ends at any key between the last kept one and the next.
                above = (order_of(top).to(tl.int64) << 32) + LAST_ID + 1
                found = count
                while (found > top_k) & (least + 1 < above):
                    middle = (least >> 1) + (above >> 1) + (least & above & 1)  # their sum could exceed int64
                    num_from = tl.full([], 0, tl.int32)
                    for at in range(0, size, CHUNK):
                        keys = _keys_at(at, size, is_listed, candidates, logits, vocab_size, columns, slot, CHUNK)
                        num_from += tl.sum((keys >= middle).to(tl.int32), 0)
                    is_enough = num_from >= top_k
                    least = tl.where(is_enough, middle, least)
                    above = tl.where(is_enough, above, middle)
                    found = tl.where(is_enough, num_from, found)
            mass = tl.full([], 0.0, tl.float64)
            if top_p < 1:
                if top_k > 0:
                    mass = _mass_from(
                        least, top, temperature, size, is_listed, candidates, logits, vocab_size, columns, slot, CHUNK
                    )
                else:
                    parts = tl.arange(0, PARTS)
                    masses = tl.load(work.part_scores + row * PARTS + parts, mask=parts * BLOCK < vocab_size, other=0.0)
                    mass = tl.sum(masses.to(tl.float64), 0)
            key, other_key = row_key(
                tl.load(columns.seed_low + slot), tl.load(columns.seed_high + slot), tl.load(positions + row), IS_KEYED
            )
            token = tl.full([], -1, tl.int32)
            is_open = top > float("-inf")
            while is_open:
                best = tl.full([], float("-inf"), tl.float32)
                token = tl.full([], LAST_ID, tl.int32)
                sampled = tl.full([], NO_KEY, tl.int64)
                for at in range(0, size, CHUNK):
                    keys = _keys_at(at, size, is_listed, candidates, logits, vocab_size, columns, slot, CHUNK)
                    is_kept = keys >= least
                    ids = (keys & LAST_ID).to(tl.int32) ^ LAST_ID
                    values = tl.where(is_kept, _value_of_key(keys), float("-inf"))
                    score, id = best_of(scores_of(values, ids, top, temperature, key, other_key), ids)
                    if (score > best) | ((score == best) & (id < token)):
                        best = score
                        token = id
                        sampled = tl.max(tl.where(ids == id, keys, NO_KEY), 0)
                is_open = top_p < 1
                if is_open:
                    before = _mass_from(
                        sampled + 1, top, temperature, size, is_listed, candidates, logits, vocab_size, columns, slot,
                        CHUNK,
                    )  # fmt: skip
                    is_open = (before >= top_p.to(tl.float64) * mass) & (before > 0) & (sampled > NO_KEY)
                    least = sampled + 1
            tl.store(out + row, token)
