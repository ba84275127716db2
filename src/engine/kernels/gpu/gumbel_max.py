"""Gumbel-max sampling: the noise of each token, the best token of a tile of logits, the best token of a row.

The noise comes from ../noise.py, so a token does not depend on the batch. Scores are logarithms,
score = (logit - top) / temperature - log(noise): the largest is sampled, and no sum over the vocabulary is needed. The
largest logit is subtracted because logit / temperature alone would be too large to keep the noise at low temperatures.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from .launch import is_interpreted

_IS_INTERPRETED: tl.constexpr = tl.constexpr(is_interpreted())
LAST_ID: tl.constexpr = tl.constexpr(0x7FFFFFFF)
_SMALLEST: tl.constexpr = tl.constexpr(1e-20)  # lowest temperature: below it a score could exceed float32


@triton.jit
def _splitmix(values):
    values = values + 0x9E3779B97F4A7C15
    values = (values ^ (values >> 30)) * 0xBF58476D1CE4E5B9
    values = (values ^ (values >> 27)) * 0x94D049BB133111EB
    return values ^ (values >> 31)


@triton.jit
def row_key(seed_low, seed_high, position, IS_KEYED: tl.constexpr):
    """row_keys of ../noise.py: low and high half, uint32. IS_KEYED: the seed is already the key."""
    low = seed_low.to(tl.uint32, bitcast=True)
    high = seed_high.to(tl.uint32, bitcast=True)
    if not IS_KEYED:
        seed = (high.to(tl.uint64) << 32) | low.to(tl.uint64)
        key = _splitmix(_splitmix(seed) ^ position.to(tl.uint64))
        low = key.to(tl.uint32)
        high = (key >> 32).to(tl.uint32)
    return low, high


@triton.jit
def exponential_noise(ids, key, other_key):
    """-log(1 - u) of ../noise.py. ids: int32. key, other_key: the two halves of a row's key, uint32."""
    bits = (ids.to(tl.uint32) * 0x9E3779B9) ^ key
    bits = bits ^ (bits >> 16)
    bits = bits * 0x7FEB352D + other_key
    bits = bits ^ (bits >> 15)
    bits = bits * 0x846CA68B
    signed = bits.to(tl.int32, bitcast=True)
    signed = signed ^ (signed >> 16)  # the shifted-in sign clears the sign bit: never negative
    uniform = tl.minimum(signed.to(tl.float32) * (1.0 / 2147483648.0) + (1.0 / 4294967296.0), 1 - 1.0 / 16777216.0)
    # For a small u log(1 - u) is computed as a series, whose remainder is below the last place. For others 1 - u loses
    # little.
    tail = 1.0 / 4 + uniform * (1.0 / 5 + uniform * (1.0 / 6 + uniform * (1.0 / 7)))
    series = uniform * (1.0 + uniform * (1.0 / 2 + uniform * (1.0 / 3 + uniform * tail)))
    return tl.where(uniform < 0.0625, series, -fast_log(1.0 - uniform))


@triton.jit
def fast_log(values):
    """Natural logarithm to 2**-22, absolute between 1/2 and 2: one instruction, where tl.log takes two dozen."""
    if _IS_INTERPRETED:
        return tl.log(values)
    return libdevice.fast_logf(values)


@triton.jit
def logarithms(values, top, temperature):
    """(values - top) / temperature, the logarithms of weights that are 1 for the largest. top: may be -inf."""
    inverse = 1.0 / tl.where(temperature > 0, tl.maximum(temperature, _SMALLEST), 1.0)
    return (values - tl.where(top > float("-inf"), top, 0.0)) * inverse


@triton.jit
def scores_of(values, ids, top, temperature, key, other_key):
    """The scores of tokens; at temperature 0 without noise."""
    scores = logarithms(values, top, temperature)
    if temperature > 0:
        scores = scores - fast_log(exponential_noise(ids, key, other_key))
    return scores


@triton.jit
def best_of(scores, ids):
    """The largest score and its id; of equal scores the smallest id."""
    best = tl.max(scores, 0)
    return best, tl.min(tl.where(scores == best, ids, LAST_ID), 0)


@triton.jit
def token_of_row(part_tops, part_scores, part_ids, parts, is_there, temperature):
    """The best token of all tiles of a row, -1 if every logit is NaN or -inf.

    part_tops, part_scores, part_ids: largest value of each tile, its best score relative to that value, and the token.
    Loaded from the second-level cache, since other programs wrote them.
    """
    tops = tl.load(part_tops + parts, mask=is_there, other=float("-inf"), cache_modifier=".cg")
    scores = tl.load(part_scores + parts, mask=is_there, other=float("-inf"), cache_modifier=".cg")
    ids = tl.load(part_ids + parts, mask=is_there, other=LAST_ID, cache_modifier=".cg")
    top = tl.max(tops, 0)
    _, token = best_of(logarithms(tops, top, temperature) + scores, ids)
    return tl.where(top > float("-inf"), token, -1)
