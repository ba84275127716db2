"""The sampling parameters of a row, and its logits with bias and penalties.

All of it is read on the device by slot, so that a captured CUDA graph works for any sequences in the slots.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .gumbel_max import LAST_ID, logarithms

_HIGHEST: tl.constexpr = tl.constexpr(1e18)  # largest logit: a difference of two, over a temperature, fits float32
NO_KEY: tl.constexpr = tl.constexpr(-0x8000000000000000)


class SamplingColumns(NamedTuple):
    """Parameters by slot, as in ../../sampling/sampling_table.py. A tuple, so that kernels take it as one argument."""

    temperature: torch.Tensor  # [S] float32, 0 takes the first of the largest logits
    top_k: torch.Tensor  # [S] int32, 0 for off
    top_p: torch.Tensor  # [S] float32, 1 for off
    min_p: torch.Tensor  # [S] float32, 0 for off
    seed_low: torch.Tensor  # [S] int32, halves of the seed
    seed_high: torch.Tensor  # [S] int32
    repetition: torch.Tensor  # [S] float32
    frequency: torch.Tensor  # [S] float32
    presence: torch.Tensor  # [S] float32
    has_bias: torch.Tensor  # [S] int32, 0 or 1
    has_penalties: torch.Tensor  # [S] int32, 0 or 1
    bias: torch.Tensor  # [S, V] float32, added to the logits; -inf forbids
    counts: torch.Tensor  # [S, V] int16; sign bit: the token is in the prompt; other bits: how often it was generated


@triton.jit
def cuts_of(columns, slot, IS_FAST_PATH: tl.constexpr):
    """(is_cut, is_ranked, temperature, top_k, top_p, min_p) of a slot.

    is_cut: tokens are sampled from a part of the vocabulary. is_ranked: the part depends on the order of tokens.
    """
    temperature = tl.load(columns.temperature + slot)
    top_k = tl.full([], 0, tl.int32)
    top_p = tl.full([], 1.0, tl.float32)
    min_p = tl.full([], 0.0, tl.float32)
    if not IS_FAST_PATH:
        top_k = tl.load(columns.top_k + slot)
        top_p = tl.load(columns.top_p + slot)
        min_p = tl.load(columns.min_p + slot)
    is_ranked = (temperature > 0) & ((top_k > 0) | (top_p < 1))
    is_cut = is_ranked | ((temperature > 0) & (min_p > 0))
    return is_cut, is_ranked, temperature, top_k, top_p, min_p


@triton.jit
def values_of(logits, ids, vocab_size, columns, slot, IS_FAST_PATH: tl.constexpr):
    """Logits of a row in float32 after bias and the penalties of ../penalise.py; NaN and padding are -inf.

    logits: pointer to the row.
    """
    is_there = ids < vocab_size
    values = tl.load(logits + ids, mask=is_there, other=float("-inf")).to(tl.float32)
    if not IS_FAST_PATH:
        entries = slot.to(tl.int64) * vocab_size + ids
        if tl.load(columns.has_bias + slot) != 0:
            values += tl.load(columns.bias + entries, mask=is_there, other=0.0)
        if tl.load(columns.has_penalties + slot) != 0:
            counts = tl.load(columns.counts + entries, mask=is_there, other=0).to(tl.int32)
            repetition = tl.load(columns.repetition + slot)
            scaled = tl.where(values > 0, values / repetition, values * repetition)
            generated = counts & 0x7FFF
            scaled -= tl.load(columns.frequency + slot) * generated.to(tl.float32)
            scaled -= tl.where(generated > 0, tl.load(columns.presence + slot), 0.0)
            values = tl.where(counts != 0, scaled, values)
    return tl.where(values == values, tl.minimum(values, _HIGHEST), float("-inf"))


@triton.jit
def weights_of(values, top, temperature):
    """Probabilities up to a factor: 1 for the best token."""
    return tl.exp(logarithms(values, top, temperature))


@triton.jit
def order_of(values):
    """float32 as int32 in the same order, with -0.0 equal to 0.0."""
    bits = tl.where(values == 0, 0.0, values).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def value_of(order):
    return tl.where(order < 0, order ^ 0x7FFFFFFF, order).to(tl.float32, bitcast=True)


@triton.jit
def keys_of(values, ids):
    """The total order of ../top_tokens.py, larger value first, then smaller id, in int64; NO_KEY for -inf."""
    keys = (order_of(values).to(tl.int64) << 32) | (ids ^ LAST_ID).to(tl.int64)
    return tl.where(values > float("-inf"), keys, NO_KEY)
