"""Causal convolution over the last tokens of each sequence, in one launch.

A row's first W - 1 tokens see inputs that its state holds; the others do not. So one program for each row and block of
channels computes the outputs of these tokens and then replaces the state: it is the only one that reads it. Further
programs compute tiles of the other tokens, whichever rows they belong to. In a step of one token a row there are none
of these: each element of the inputs and of the state is read once, and the state is written once, which is the floor.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..causal_convolution import Kind
from ..recurrent_step import RecurrentStep
from .launch import dependent, wait
from .recurrent import load_row
from .token_rows import rows_of_tokens

_BLOCK = 256  # channels of one program
_TILE = 8  # tokens of one program


@triton.jit
def _inputs(x, places, is_there, channels, IS_GATED: tl.constexpr):
    """What is convolved, in x's dtype as the state holds it. 0 where nothing is."""
    inputs = tl.load(x + places, mask=is_there, other=0.0)
    if IS_GATED:
        given = tl.load(x + 2 * channels + places, mask=is_there, other=0.0).to(tl.float32)
        inputs = (inputs.to(tl.float32) * given).to(x.dtype.element_ty)
    return inputs


@triton.jit
def _finished(total, x, places, is_there, channels, IS_GATED: tl.constexpr, IS_ACTIVE: tl.constexpr):
    if IS_GATED:
        total *= tl.load(x + channels + places, mask=is_there, other=0.0).to(tl.float32)
    if IS_ACTIVE:
        total *= tl.sigmoid(total)
    return total


@triton.jit
def _seen(
    x, state, tokens, count, past, columns, is_column, channels, stride, HISTORY: tl.constexpr, IS_GATED: tl.constexpr
):  # fmt: skip
    """Inputs of a row, [len(tokens), len(columns)]: those of the state for tokens before 0, 0 before the sequence.

    x: of the row's first token. tokens: from -HISTORY on. past: how many of the state's inputs are the sequence's.
    """
    is_fresh = ((tokens >= 0) & (tokens < count))[:, None] & is_column[None, :]
    fresh = _inputs(x, tokens[:, None] * stride + columns[None, :], is_fresh, channels, IS_GATED)
    is_kept = ((tokens < 0) & (tokens >= -past))[:, None] & is_column[None, :]
    kept = tl.load(state + (tokens + HISTORY)[:, None] * channels + columns[None, :], mask=is_kept, other=0.0)
    return tl.where((tokens >= 0)[:, None], fresh, kept)


@triton.jit(do_not_specialize=["num_rows", "num_tokens", "first_width"])
def _convolve(
    x, taps, bias, state, out, query_start, context_lens, seq_slots, num_rows, num_tokens, first_width, channels,
    stride, state_stride,
    WIDTH: tl.constexpr, KEPT: tl.constexpr, HAS_BIAS: tl.constexpr, IS_GATED: tl.constexpr, IS_ACTIVE: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    program = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < channels
    history: tl.constexpr = WIDTH - 1
    first = tl.zeros([BLOCK], tl.float32)
    if HAS_BIAS:
        first = tl.load(bias + columns, mask=is_column, other=0.0)
    if program < num_rows:
        start, count, slot, has_state = load_row(query_start, context_lens, seq_slots, program)
        if count > 0:
            past = tl.where(has_state, history, 0)
            x += start * stride
            state += slot * state_stride
            lags = tl.arange(0, KEPT).to(tl.int64)  # of the first tokens, and of the inputs that the state holds
            is_own = (lags < tl.minimum(count, history))[:, None] & is_column[None, :]
            total = tl.zeros([KEPT, BLOCK], tl.float32) + first[None, :]
            for tap in tl.static_range(WIDTH):
                at = lags - history + tap
                inputs = _seen(x, state, at, count, past, columns, is_column, channels, stride, history, IS_GATED)
                weights = tl.load(taps + tap * channels + columns, mask=is_column, other=0.0)
                total += inputs.to(tl.float32) * weights[None, :]
            places = lags[:, None]
            total = _finished(total, x, places * stride + columns[None, :], is_own, channels, IS_GATED, IS_ACTIVE)
            places = (start + places) * channels + columns[None, :]
            tl.store(out + places, total.to(out.dtype.element_ty), mask=is_own)
            newest = lags + count - history
            kept = _seen(x, state, newest, count, past, columns, is_column, channels, stride, history, IS_GATED)
            is_kept = (lags < history)[:, None] & is_column[None, :]
            tl.debug_barrier()  # no warp writes before all have read
            tl.store(state + lags[:, None] * channels + columns[None, :], kept, mask=is_kept)
    else:
        tokens = (program - num_rows) * TILE + tl.arange(0, TILE)
        rows = rows_of_tokens(query_start, tokens, num_rows, first_width)
        is_own = (rows < num_rows) & (tokens < num_tokens)
        is_own = is_own & (tl.load(seq_slots + rows, mask=is_own, other=-1) >= 0)
        is_own = is_own & (tokens - tl.load(query_start + rows) >= history)
        is_there = is_own[:, None] & is_column[None, :]
        places = tokens.to(tl.int64)[:, None]
        total = tl.zeros([TILE, BLOCK], tl.float32) + first[None, :]
        for tap in tl.static_range(WIDTH):
            inputs = _inputs(x, (places - history + tap) * stride + columns[None, :], is_there, channels, IS_GATED)
            weights = tl.load(taps + tap * channels + columns, mask=is_column, other=0.0)
            total += inputs.to(tl.float32) * weights[None, :]
        total = _finished(total, x, places * stride + columns[None, :], is_there, channels, IS_GATED, IS_ACTIVE)
        tl.store(out + places * channels + columns[None, :], total.to(out.dtype.element_ty), mask=is_there)


def causal_convolution_gpu(
    x: torch.Tensor,
    taps: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    step: RecurrentStep,
    kind: Kind,
) -> torch.Tensor:
    """Computes causal_convolution_reference. Rows and slots may have any stride."""
    width, channels = taps.shape
    if state.shape[1:] != (width - 1, channels) or x.shape[1] < channels * (3 if kind == "gated" else 1):
        raise ValueError(f"x is {tuple(x.shape)}, taps {tuple(taps.shape)}, state {tuple(state.shape)}")
    tokens, rows = len(x), len(step.seq_slots)
    out = torch.empty(tokens, channels, dtype=x.dtype, device=x.device)
    tiles = triton.cdiv(tokens, _TILE) if step.max_query_len >= width else 0
    block = min(_BLOCK, triton.next_power_of_2(channels))
    if tokens and rows:
        _convolve[(rows + tiles, triton.cdiv(channels, block))](
            x, taps, bias, state, out, step.query_start, step.context_lens, step.seq_slots, rows, tokens,
            triton.next_power_of_2(rows), channels, x.stride(0), state.stride(0),
            WIDTH=width, KEPT=triton.next_power_of_2(max(1, width - 1)), HAS_BIAS=bias is not None,
            IS_GATED=kind == "gated", IS_ACTIVE=kind == "silu", BLOCK=block, TILE=_TILE, num_warps=2, **dependent(),
        )  # fmt: skip
    return out
