"""The selective state space of Mamba: a program per row and block of channels, which takes them through all tokens.

Every element of the state decays by a rate of its own, so that a chunk of tokens is no product of matrices: rows of one
token and of many are one kernel and one launch. The state stays in registers. In steps with prompts a program takes
TOKENS tokens at a time, all of whose loads are issued before the first of them is computed and whose outputs are stored
together: it waits for memory once per group, and exponentials of later tokens do not wait for the state.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..recurrent_step import RecurrentStep
from ..selective_scan import SelectiveScanWeights, check_widths, groups_of
from .launch import dependent, wait
from .recurrent import load_row, softplus

CHANNELS = 32  # of a program: 64 bytes of a row in bfloat16, 128 of the state
GROUP = 8  # tokens whose loads are in flight together, in steps with a row of several tokens
ROWS_OF_A_WARP = 16  # of the state: 16 registers of a thread


@triton.jit
def _selective_scan(
    x, gates, steps, b, c, rates, dt_bias, skip, state, out, query_start, context_lens, seq_slots,
    x_stride, gates_stride, steps_stride, b_stride, c_stride, state_stride, channels, of_group,
    STATE_SIZE: tl.constexpr, STATE_WIDTH: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    start, count, slot, has_state = load_row(query_start, context_lens, seq_slots, tl.program_id(0))
    if count > 0:
        blocks = tl.cdiv(of_group, BLOCK)
        group = tl.program_id(1) // blocks
        places_of_group = tl.program_id(1) % blocks * BLOCK + tl.arange(0, BLOCK)
        columns = group * of_group + places_of_group
        lanes = tl.arange(0, STATE_WIDTH)
        is_column = places_of_group < of_group
        own = lanes[:, None] * channels + columns[None, :]
        is_own = (lanes < STATE_SIZE)[:, None] & is_column[None, :]
        rate = tl.load(rates + own, mask=is_own, other=0.0)
        bias = tl.load(dt_bias + columns, mask=is_column, other=0.0)
        share = tl.load(skip + columns, mask=is_column, other=0.0)
        state += slot * state_stride
        sums = tl.zeros([STATE_WIDTH, BLOCK], tl.float32)
        if has_state:
            sums = tl.load(state + own, mask=is_own, other=0.0).to(tl.float32)
        x += start * x_stride
        gates += start * gates_stride
        steps += start * steps_stride
        b += start * b_stride + group * STATE_SIZE
        c += start * c_stride + group * STATE_SIZE
        out += start * channels
        places = tl.arange(0, TOKENS)
        for begin in range(0, count, TOKENS):
            outputs = tl.zeros([TOKENS, BLOCK], tl.float32)
            for place in tl.static_range(TOKENS):
                is_token = count - begin > place
                is_input = places_of_group < tl.where(is_token, of_group, 0)
                is_key = lanes < tl.where(is_token, STATE_SIZE, 0)
                d = tl.load(steps + place * steps_stride + columns, mask=is_input, other=0.0).to(tl.float32)
                value = tl.load(x + place * x_stride + columns, mask=is_input, other=0.0).to(tl.float32)
                keys = tl.load(b + place * b_stride + lanes, mask=is_key, other=0.0).to(tl.float32)
                queries = tl.load(c + place * c_stride + lanes, mask=is_key, other=0.0).to(tl.float32)
                d = tl.where(is_token, softplus(d + bias), 0.0)  # after the last token the state does not decay
                sums = sums * tl.exp(rate * d[None, :]) + keys[:, None] * (d * value)[None, :]
                total = tl.sum(sums * queries[:, None], 0) + share * value
                outputs = tl.where((places == place)[:, None], total[None, :], outputs)
            is_output = (begin + places < count)[:, None] & is_column[None, :]
            gate = tl.load(gates + places[:, None] * gates_stride + columns[None, :], mask=is_output, other=0.0)
            gate = gate.to(tl.float32)
            outputs *= gate * tl.sigmoid(gate)
            at = places[:, None] * channels + columns[None, :]
            tl.store(out + at, outputs.to(out.dtype.element_ty), mask=is_output)
            x += TOKENS * x_stride
            gates += TOKENS * gates_stride
            steps += TOKENS * steps_stride
            b += TOKENS * b_stride
            c += TOKENS * c_stride
            out += TOKENS * channels
        tl.store(state + own, sums.to(state.dtype.element_ty), mask=is_own)


def selective_scan_gpu(
    x: torch.Tensor,
    projected: torch.Tensor,
    steps: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    weights: SelectiveScanWeights,
    state: torch.Tensor,
    step: RecurrentStep,
) -> torch.Tensor:
    """Computes selective_scan_reference. Rows and slots may have any stride."""
    check_widths(state, x, projected, steps, b, c)
    _, state_size, channels = state.shape
    out = torch.empty(len(x), channels, dtype=x.dtype, device=x.device)
    rows, width, groups = len(step.seq_slots), triton.next_power_of_2(state_size), groups_of(b, state)
    of_group = channels // groups
    if len(x) and rows:
        gates = projected[:, channels:]
        _selective_scan[(rows, groups * triton.cdiv(of_group, CHANNELS))](
            x, gates, steps, b, c, weights.rates, weights.dt_bias, weights.skip, state, out,
            step.query_start, step.context_lens, step.seq_slots,
            x.stride(0), gates.stride(0), steps.stride(0), b.stride(0), c.stride(0), state.stride(0), channels,
            of_group,
            STATE_SIZE=state_size, STATE_WIDTH=width, BLOCK=CHANNELS, TOKENS=GROUP if step.max_query_len > 1 else 1,
            num_warps=max(1, width // ROWS_OF_A_WARP), num_stages=1, **dependent(),
        )  # fmt: skip
    return out
