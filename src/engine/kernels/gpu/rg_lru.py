"""The real-gated linear recurrent unit: a program per row and block of channels, which takes them through all tokens.

As with Mamba every element decays at a rate of its own, so that a chunk of tokens is no product of matrices. In steps
with prompts a program takes TOKENS tokens at a time, whose loads and gates do not wait for the state.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..recurrent_step import RecurrentStep
from ..rg_lru import RgLruWeights, check_widths
from .launch import dependent, wait
from .recurrent import load_row

CHANNELS = 64  # of a program: 128 bytes of a row in bfloat16
GROUP = 8  # tokens whose loads are in flight together, in steps with a row of several tokens


@triton.jit
def _rg_lru(
    x, input_gates, decay_gates, rates, input_bias, decay_bias, state, out, query_start, context_lens, seq_slots,
    x_stride, input_stride, decay_stride, state_stride, channels,
    BLOCK: tl.constexpr, TOKENS: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    start, count, slot, has_state = load_row(query_start, context_lens, seq_slots, tl.program_id(0))
    if count > 0:
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        is_column = columns < channels
        rate = tl.load(rates + columns, mask=is_column, other=0.0)
        of_input = tl.load(input_bias + columns, mask=is_column, other=0.0)
        of_decay = tl.load(decay_bias + columns, mask=is_column, other=0.0)
        state += slot * state_stride
        value = tl.zeros([BLOCK], tl.float32)
        if has_state:
            value = tl.load(state + columns, mask=is_column, other=0.0).to(tl.float32)
        x += start * x_stride
        input_gates += start * input_stride
        decay_gates += start * decay_stride
        out += start * channels
        for begin in range(0, count, TOKENS):
            for place in tl.static_range(TOKENS):
                is_token = count - begin > place
                is_own = columns < tl.where(is_token, channels, 0)
                given = tl.load(x + place * x_stride + columns, mask=is_own, other=0.0).to(tl.float32)
                gate = tl.load(input_gates + place * input_stride + columns, mask=is_own, other=0.0).to(tl.float32)
                decay = tl.load(decay_gates + place * decay_stride + columns, mask=is_own, other=0.0).to(tl.float32)
                log = rate * tl.sigmoid(decay + of_decay)
                scale = tl.sqrt(tl.maximum(1.0 - tl.exp(2.0 * log), 0.0))
                is_first = (has_state == 0) & (begin + place == 0)
                scale = tl.where(is_first, 1.0, scale)
                after = tl.exp(log) * value + scale * (given * tl.sigmoid(gate + of_input))
                value = tl.where(is_token, after, value)
                tl.store(out + place * channels + columns, value.to(out.dtype.element_ty), mask=is_own)
            x += TOKENS * x_stride
            input_gates += TOKENS * input_stride
            decay_gates += TOKENS * decay_stride
            out += TOKENS * channels
        tl.store(state + columns, value.to(state.dtype.element_ty), mask=is_column)


def rg_lru_gpu(
    x: torch.Tensor,
    input_gates: torch.Tensor,
    decay_gates: torch.Tensor,
    weights: RgLruWeights,
    state: torch.Tensor,
    step: RecurrentStep,
) -> torch.Tensor:
    """Computes rg_lru_reference. Rows and slots may have any stride."""
    check_widths(state, x, input_gates, decay_gates)
    channels, rows = x.shape[1], len(step.seq_slots)
    out = torch.empty(len(x), channels, dtype=x.dtype, device=x.device)
    if len(x) and rows:
        _rg_lru[(rows, triton.cdiv(channels, CHANNELS))](
            x, input_gates, decay_gates, weights.rates, weights.input_bias, weights.decay_bias, state, out,
            step.query_start, step.context_lens, step.seq_slots,
            x.stride(0), input_gates.stride(0), decay_gates.stride(0), state.stride(0), channels,
            BLOCK=CHANNELS, TOKENS=GROUP if step.max_query_len > 1 else 1, num_warps=2, num_stages=1, **dependent(),
        )  # fmt: skip
    return out
