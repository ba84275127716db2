"""Vectors of groups of tokens: a program takes a token, and has work if it completes a group.

In decode steps it keeps its token's inputs too: no other program reads the ring of its sequence. In steps with prompts
a second kernel keeps them, because rows of the ring that it overwrites are inputs of vectors of the same step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..compressed_attention import CompressedStep, Compression
from .keep_rows import keep_rows, load_token
from .launch import dependent, wait
from .rope_and_store import as_stored
from .turned_pairs import check_pairs, turned_pairs

_TOKENS = 8  # whose inputs are read together


@triton.jit(do_not_specialize=["num_rows"])
def _compress_tokens(
    inputs, bias, weight, cos_sin, ring, cache, query_start, context_lens, seq_slots, positions, slot_mapping,
    eps, num_rows, stride, slot_stride, ring_stride, first,
    DIM: tl.constexpr, WIDTH: tl.constexpr, ROTATED: tl.constexpr, RATE: tl.constexpr, SPAN: tl.constexpr,
    TOKENS: tl.constexpr, TOKEN_STRIDE: tl.constexpr, KEEPS: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    token = tl.program_id(0)
    position = tl.load(positions + token)
    is_last = (position + 1) % RATE == 0
    if is_last | KEEPS:
        _, start, _, slot, offset = load_token(query_start, context_lens, seq_slots, token, num_rows)
        columns = tl.arange(0, WIDTH)
        is_column = columns < tl.where(slot >= 0, DIM, 0)
        overlaps: tl.constexpr = SPAN // RATE - 1
        gates_at: tl.constexpr = DIM * (1 + overlaps)
        own_ring = ring + slot * slot_stride
        place = tl.load(slot_mapping + token)
        if is_last & (slot >= 0) & (place >= 0):
            most = tl.full([WIDTH], float("-inf"), tl.float32)
            total = tl.zeros([WIDTH], tl.float32)
            sums = tl.zeros([WIDTH], tl.float32)
            for begin in range(0, SPAN, TOKENS):
                places = begin + tl.arange(0, TOKENS)
                at = position + 1 - SPAN + places
                is_there = (places < SPAN) & (at >= 0)
                is_new = at >= start + offset
                lanes = (places // RATE * DIM)[:, None] + columns[None, :]  # the second half for their own group
                is_old = (is_there & (is_new == 0))[:, None] & is_column[None, :]
                is_new = (is_there & is_new)[:, None] & is_column[None, :]
                old = own_ring + (at % SPAN)[:, None] * ring_stride + lanes
                new = inputs + (at - offset)[:, None] * stride + lanes
                values = tl.load(old, mask=is_old, other=0.0).to(tl.float32)
                values += tl.load(new, mask=is_new, other=0.0).to(tl.float32)
                gates = tl.load(old + gates_at, mask=is_old, other=0.0).to(tl.float32)
                gates += tl.load(new + gates_at, mask=is_new, other=0.0).to(tl.float32)
                gates += tl.load(bias + (places % RATE)[:, None] * gates_at + lanes, mask=is_column[None, :], other=0.0)
                gates = tl.where(is_there[:, None], gates, float("-inf"))
                highest = tl.maximum(most, tl.max(gates, 0))
                base = tl.where(highest == float("-inf"), 0.0, highest)  # the first group has none before it
                shares = tl.exp(gates - base[None, :])
                shrink = tl.exp(most - base)
                total = total * shrink + tl.sum(shares, 0)
                sums = sums * shrink + tl.sum(shares * values, 0)
                most = highest
            mean = tl.where(is_column, sums / total, 0.0)
            normed = mean * tl.rsqrt(tl.sum(mean * mean, 0) / DIM + eps)
            normed *= tl.load(weight + columns, mask=is_column, other=0.0)
            angles = cos_sin + (position + 1 - RATE) * ROTATED + tl.zeros([1, 1], tl.int32)
            vector = turned_pairs(normed[None, :], angles, 1.0, 1, DIM, WIDTH, ROTATED)
            to = cache + place // RATE * RATE * TOKEN_STRIDE + first + columns[None, :]
            tl.store(to, as_stored(vector, cache), mask=is_column[None, :])
        if KEEPS:
            source = inputs + token.to(tl.int64) * stride + columns
            to = own_ring + position % SPAN * ring_stride + columns
            for part in tl.static_range(2 * (1 + overlaps)):
                value = tl.load(source + part * DIM, mask=is_column, other=0.0)
                tl.store(to + part * DIM, value.to(ring.dtype.element_ty), mask=is_column)


def compress_tokens_gpu(
    inputs: torch.Tensor,
    compression: Compression,
    cos_sin: torch.Tensor,
    ring: torch.Tensor,
    cache: torch.Tensor,
    first: int,
    step: CompressedStep,
) -> None:
    """Computes compress_tokens_reference. inputs and ring may have any stride but that of columns, which is 1."""
    dim, rate, span, rows = compression.dim, compression.rate, ring.shape[1], len(step.seq_slots)
    check_pairs(dim, cos_sin)
    width = 2 * dim * (1 + compression.overlaps)
    if inputs.shape[1] != width or ring.shape[1:] != (rate * (1 + compression.overlaps), width):
        raise ValueError(f"inputs are {tuple(inputs.shape)}, the ring is {tuple(ring.shape)}, for vectors of {dim}")
    if not len(inputs) or not rows:
        return
    keeps = step.max_query_len == 1
    _compress_tokens[(len(inputs),)](
        inputs, compression.bias, compression.weight, cos_sin, ring, cache, step.query_start, step.context_lens,
        step.seq_slots, step.positions, step.slot_mapping, compression.eps, rows, inputs.stride(0), ring.stride(0),
        ring.stride(1), first,
        DIM=dim, WIDTH=triton.next_power_of_2(dim), ROTATED=cos_sin.shape[1], RATE=rate, SPAN=span,
        TOKENS=min(_TOKENS, triton.next_power_of_2(span)), TOKEN_STRIDE=cache.shape[3], KEEPS=keeps, num_warps=8,
        **dependent(),
    )  # fmt: skip
    if not keeps:
        keep_rows(inputs, ring, step)
