"""Rows whose tokens are cut by rank, top-k and top-p: which of them come into question, and the draw among those.

Exact for any logits. What most tokens of a vocabulary are worth is known without their order, from the largest logit
of every group of them: a value that the last token to be kept cannot lie below. The few above it, the candidates, are
listed, and one program per row finds the k-th of them and the nucleus. Where they are too many to be listed, that
program goes over the whole row instead: right, and slower.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .draw import LAST_ID, best_of, row_key, scores_of
from .sample_row import NO_KEY, cuts_of, keys_of, order_of, value_of, values_of, weights_of

# Weights are summed as integers: lists have no order of their own, and a float32's sum depends on it. At most 2**20
# weights of at most 1 fit; what is cut off a weight is less than float32 loses in the sum of so many.
_UNIT: tl.constexpr = tl.constexpr(4398046511104.0)  # 2**42
_SLACK: tl.constexpr = tl.constexpr(1e-5)  # of the mass: more than float32's sums can be wrong by


@triton.jit
def least_candidate(maxima, lanes, is_there, top, mass, temperature, top_k, top_p, GROUP: tl.constexpr):
    """A value that no token of the first top_k, or without top-k of the nucleus, lies below.

    maxima: where those of the row's groups of GROUP tokens begin. mass: of all weights, but for rounding.

    Found by bisection, to the last 8 bits. Enough tokens for top-k are at or above a value if so many maxima are. For
    top-p, what is above weighs at least what the maxima there weigh, and what is below at most GROUP times the
    maxima there or the value itself.
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
    """Of so many candidates, or of so many tokens of the row where there is no list."""
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
    """The weights of all keys that are not below, summed."""
    units = tl.full([], 0, tl.int64)
    for at in range(0, size, CHUNK):
        keys = _keys_at(at, size, is_listed, candidates, logits, vocab_size, columns, slot, CHUNK)
        is_kept = keys >= least
        weights = weights_of(tl.where(is_kept, _value_of_key(keys), top), top, temperature)
        units += tl.sum(tl.where(is_kept, weights * _UNIT, 0.0).to(tl.int64), 0)
    return units.to(tl.float64) / _UNIT


@triton.jit
def draw_ranked(
    logits, stride, slots, positions, out, columns, work, vocab_size,
    IS_KEYED: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The rows that survey and gather of sample.py left, one program each.

    A token that is drawn from more than the nucleus and lies in it is the one that the nucleus would have given, since
    noise belongs to tokens. One that does not lie in it comes behind all that do, so the next draw is among those
    before it: 1 + log(1 / top_p) draws in the mean, whatever the logits.
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
            least = order_of(tl.load(work.leasts + row)).to(tl.int64) << 32  # smallest key that may be drawn
            if top_k > 0:
                # Bisection of the keys: few steps, as it ends at any key between the last one kept and the next.
                above = (order_of(top).to(tl.int64) << 32) + LAST_ID + 1
                found = count
                while (found > top_k) & (least + 1 < above):
                    middle = (least >> 1) + (above >> 1) + (least & above & 1)  # their sum could leave int64
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
                drawn = tl.full([], NO_KEY, tl.int64)
                for at in range(0, size, CHUNK):
                    keys = _keys_at(at, size, is_listed, candidates, logits, vocab_size, columns, slot, CHUNK)
                    is_kept = keys >= least
                    ids = (keys & LAST_ID).to(tl.int32) ^ LAST_ID
                    values = tl.where(is_kept, _value_of_key(keys), float("-inf"))
                    score, id = best_of(scores_of(values, ids, top, temperature, key, other_key), ids)
                    if (score > best) | ((score == best) & (id < token)):
                        best = score
                        token = id
                        drawn = tl.max(tl.where(ids == id, keys, NO_KEY), 0)
                is_open = top_p < 1
                if is_open:
                    before = _mass_from(
                        drawn + 1, top, temperature, size, is_listed, candidates, logits, vocab_size, columns, slot,
                        CHUNK,
                    )  # fmt: skip
                    is_open = (before >= top_p.to(tl.float64) * mass) & (before > 0) & (drawn > NO_KEY)
                    least = drawn + 1
            tl.store(out + row, token)
