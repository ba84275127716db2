"""Draws one token per row from its softmax by Gumbel-max: two passes over the logits, one where no row has min-p.

The noise is that of ../noise.py, so a token does not depend on the device's batch. Scores are logarithms, score =
logit / temperature - log(noise): the largest wins, and no sum over the vocabulary is needed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024  # logits that a program goes over at once
_LEAST_PROGRAMS = 264  # two for each multiprocessor of the largest devices: few rows are cut into many stretches


@triton.jit
def _tops(logits, tops, vocab_size, per_stretch, stride, STRETCHES: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1) * per_stretch
    end = tl.minimum(begin + per_stretch, vocab_size)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    for at in range(begin, end, BLOCK):
        ids = at + tl.arange(0, BLOCK)
        values = tl.load(logits + row * stride + ids, mask=ids < end, other=float("-inf")).to(tl.float32)
        best = tl.maximum(best, tl.where(values == values, values, float("-inf")))
    tl.store(tops + row * STRETCHES + tl.program_id(1), tl.max(best, 0))


@triton.jit
def exponential_noise(ids, key, other_key):
    """-log(1 - u) of ../noise.py. ids: int32. key, other_key: the two words of a row, uint32."""
    bits = (ids.to(tl.uint32) * 0x9E3779B9) ^ key
    bits = bits ^ (bits >> 16)
    bits = bits * 0x7FEB352D + other_key
    bits = bits ^ (bits >> 15)
    bits = bits * 0x846CA68B
    signed = bits.to(tl.int32, bitcast=True)
    signed = signed ^ (signed >> 16)  # with the sign shifted in: never negative
    uniform = tl.minimum(signed.to(tl.float32) * (1.0 / 2147483648.0) + (1.0 / 4294967296.0), 1 - 1.0 / 16777216.0)
    # log(1 + x) without losing a small x: what 1 + x was rounded by goes into the factor.
    rest = 1.0 - uniform
    return tl.where(rest == 1.0, uniform, -tl.log(rest) * (uniform / tl.where(rest == 1.0, 1.0, 1.0 - rest)))


@triton.jit
def _draw(
    logits, temperatures, min_ps, keys, tops, best_scores, best_ids, vocab_size, per_stretch, stride,
    HAS_MIN_P: tl.constexpr, STRETCHES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    stretch = tl.program_id(1)
    begin = stretch * per_stretch
    end = tl.minimum(begin + per_stretch, vocab_size)
    temperature = tl.load(temperatures + row)
    divisor = tl.maximum(temperature, 1e-6)  # or a score could leave float32
    key = tl.load(keys + row * 2).to(tl.uint32, bitcast=True)
    other_key = tl.load(keys + row * 2 + 1).to(tl.uint32, bitcast=True)
    least = float("-inf")  # logit of a token that min-p allows
    if HAS_MIN_P:
        top = tl.max(tl.load(tops + row * STRETCHES + tl.arange(0, STRETCHES)), 0)
        min_p = tl.load(min_ps + row)
        least = tl.where(min_p > 0, top + temperature * tl.log(tl.where(min_p > 0, min_p, 1.0)), least)
    scores = tl.full([BLOCK], float("-inf"), tl.float32)
    chosen = tl.zeros([BLOCK], tl.int32)
    for at in range(begin, end, BLOCK):
        ids = at + tl.arange(0, BLOCK)
        values = tl.load(logits + row * stride + ids, mask=ids < end, other=float("-inf")).to(tl.float32)
        values = tl.where((values == values) & (values >= least), values, float("-inf"))
        score = values
        if temperature > 0:
            score = values / divisor - tl.log(exponential_noise(ids, key, other_key))
        is_better = score > scores
        scores = tl.where(is_better, score, scores)
        chosen = tl.where(is_better, ids, chosen)
    best = tl.max(scores, 0)
    tl.store(best_scores + row * STRETCHES + stretch, best)
    tl.store(best_ids + row * STRETCHES + stretch, tl.min(tl.where(scores == best, chosen, 0x7FFFFFFF), 0))


@triton.jit
def _join(best_scores, best_ids, drawn, STRETCHES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    stretches = row * STRETCHES + tl.arange(0, STRETCHES)
    scores = tl.load(best_scores + stretches)
    best = tl.max(scores, 0)
    token = tl.min(tl.where(scores == best, tl.load(best_ids + stretches), 0x7FFFFFFF), 0)
    tl.store(drawn + row, tl.where(best > float("-inf"), token, -1).to(tl.int64))


def draw_gpu(
    logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor | None, keys: torch.Tensor
) -> torch.Tensor:
    """As draw_reference; min_p: None where no row has one, which spares a pass over the logits."""
    rows, vocab_size = logits.shape
    if any(len(each) != rows for each in (temperature, keys)) or (min_p is not None and len(min_p) != rows):
        raise ValueError(f"{rows} rows, but temperatures for {len(temperature)} and keys for {len(keys)}")
    drawn = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows == 0:
        return drawn
    blocks = triton.cdiv(vocab_size, _BLOCK)
    stretches = triton.next_power_of_2(min(blocks, triton.cdiv(_LEAST_PROGRAMS, rows)))
    per_stretch = triton.cdiv(blocks, stretches) * _BLOCK
    scores = torch.empty(rows, stretches, device=logits.device)
    ids = torch.empty(rows, stretches, dtype=torch.int32, device=logits.device)
    tops = torch.empty_like(scores) if min_p is not None else None
    if tops is not None:
        _tops[(rows, stretches)](
            logits, tops, vocab_size, per_stretch, logits.stride(0), STRETCHES=stretches, BLOCK=_BLOCK
        )
    _draw[(rows, stretches)](
        logits, temperature, min_p, keys, tops, scores, ids, vocab_size, per_stretch, logits.stride(0),
        HAS_MIN_P=min_p is not None, STRETCHES=stretches, BLOCK=_BLOCK,
    )  # fmt: skip
    _join[(rows,)](scores, ids, drawn, STRETCHES=stretches)
    return drawn
