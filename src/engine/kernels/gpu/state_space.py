"""The selective state space of Mamba-2: a program per row, head and block of the state's columns: see recurrent.py.

A longer row is divided into chunks (arXiv:2405.21060, section 6). With decay[t, s] from after token s to after token
t, and d x the inputs times their time steps, the outputs of a chunk are (C B' * decay) (d x) + decay[t, before] C S,
and the state after it is decay[last, before] S + B' (decay[last, s] d x).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..recurrent_step import RecurrentStep
from ..state_space import StateSpaceWeights, num_groups
from .attention_tile import PRECISION
from .launch import dependent, wait
from .recurrent import CHUNK, FEW, PART, launches, load_row, product, softplus, sums_between


@triton.jit
def _time_steps(steps, places, is_token, bias, least, most):
    """Time steps in float32, 0 where there is no token."""
    dt = tl.load(steps + places, mask=is_token, other=0.0).to(tl.float32)
    return tl.where(is_token, tl.minimum(tl.maximum(softplus(dt + bias), least), most), 0.0)


@triton.jit
def _state_space(
    mixed, steps, a_log, dt_bias, skip, state, out, query_start, context_lens, seq_slots, min_step, max_step,
    mixed_stride, steps_stride, state_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, GROUPS: tl.constexpr, STATE_SIZE: tl.constexpr,
    STATE_WIDTH: tl.constexpr, COLUMNS: tl.constexpr, IS_CHUNKED: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The rows of at most FEW tokens or, if IS_CHUNKED, the others."""
    wait(IS_DEPENDENT)
    start, count, slot, has_state = load_row(query_start, context_lens, seq_slots, tl.program_id(0))
    is_mine = (count > FEW) if IS_CHUNKED else ((count > 0) & (count <= FEW))
    if is_mine:
        head = tl.program_id(1)
        columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
        lanes = tl.arange(0, STATE_WIDTH)
        is_column, is_lane = columns < HEAD_DIM, lanes < STATE_SIZE
        rate = -tl.exp(tl.load(a_log + head))
        bias, share = tl.load(dt_bias + head), tl.load(skip + head)
        own = lanes[:, None] * HEAD_DIM + columns[None, :]
        is_own = is_lane[:, None] & is_column[None, :]
        state += slot * state_stride + head * STATE_SIZE * HEAD_DIM
        sums = tl.zeros([STATE_WIDTH, COLUMNS], tl.float32)
        if has_state:
            sums = tl.load(state + own, mask=is_own, other=0.0).to(tl.float32)
        mixed += start * mixed_stride
        steps += start * steps_stride + head
        out += start * (HEADS * HEAD_DIM) + head * HEAD_DIM
        inputs = mixed + head * HEAD_DIM
        group: tl.constexpr = HEADS // GROUPS
        keys = mixed + HEADS * HEAD_DIM + head // group * STATE_SIZE
        queries = keys + GROUPS * STATE_SIZE
        if IS_CHUNKED:
            sums = tl.reshape(sums, [STATE_WIDTH // PART, PART, COLUMNS])
            places = tl.arange(0, CHUNK)
            parts = tl.arange(0, STATE_WIDTH // PART)
            by_part = parts[:, None, None] * PART + tl.arange(0, PART)[None, None, :]
            for begin in range(0, count, CHUNK):
                tokens = begin + places.to(tl.int64)
                is_token = tokens < count
                is_key = is_token[None, :, None] & (by_part < STATE_SIZE)
                is_input = is_token[:, None] & is_column[None, :]
                at_keys = tokens[None, :, None] * mixed_stride + by_part
                b = tl.load(keys + at_keys, mask=is_key, other=0.0).to(tl.float32)
                x = tl.load(inputs + tokens[:, None] * mixed_stride + columns[None, :], mask=is_input, other=0.0)
                x = x.to(tl.float32)
                d = _time_steps(steps, tokens * steps_stride, is_token, bias, min_step, max_step)
                scaled = d[:, None] * x
                decays = tl.exp(sums_between(rate * d, CHUNK))
                transposed = tl.permute(b, (0, 2, 1))
                c = tl.load(queries + at_keys, mask=is_key, other=0.0).to(tl.float32)
                outputs = tl.dot(product(c, transposed) * decays, scaled, input_precision=PRECISION)
                outputs += product(c, sums) * tl.exp(tl.cumsum(rate * d, 0))[:, None] + share * x
                tl.store(out + tokens[:, None] * (HEADS * HEAD_DIM) + columns[None, :], outputs, mask=is_input)
                left = tl.sum(tl.where((places == CHUNK - 1)[:, None], decays, 0.0), 0)  # of each input, at the end
                scaled = tl.broadcast_to((scaled * left[:, None])[None], [STATE_WIDTH // PART, CHUNK, COLUMNS])
                sums *= tl.exp(tl.sum(rate * d, 0))
                sums += tl.dot(transposed, scaled, input_precision=PRECISION)
            sums = tl.reshape(sums, [STATE_WIDTH, COLUMNS])
        else:
            for token in range(count):
                b = tl.load(keys + token * mixed_stride + lanes, mask=is_lane, other=0.0).to(tl.float32)
                c = tl.load(queries + token * mixed_stride + lanes, mask=is_lane, other=0.0).to(tl.float32)
                x = tl.load(inputs + token * mixed_stride + columns, mask=is_column, other=0.0).to(tl.float32)
                d = _time_steps(steps, token * steps_stride, True, bias, min_step, max_step)
                sums = sums * tl.exp(rate * d) + b[:, None] * (d * x)[None, :]
                outputs = tl.sum(sums * c[:, None], 0) + share * x
                tl.store(out + token * (HEADS * HEAD_DIM) + columns, outputs, mask=is_column)
        tl.store(state + own, sums.to(state.dtype.element_ty), mask=is_own)


def state_space_gpu(
    mixed: torch.Tensor,
    projected: torch.Tensor,
    weights: StateSpaceWeights,
    state: torch.Tensor,
    step: RecurrentStep,
) -> torch.Tensor:
    """Computes state_space_reference. Rows and slots may have any stride."""
    _, heads, state_size, head_dim = state.shape
    groups = num_groups(mixed, projected, state)
    tokens, rows = len(mixed), len(step.seq_slots)
    out = torch.empty(tokens, heads * head_dim, dtype=torch.float32, device=mixed.device)
    for launch in launches(step, tokens, state_size):
        _state_space[(rows, heads, triton.cdiv(head_dim, launch.columns))](
            mixed, projected[:, -heads:], weights.a_log, weights.dt_bias, weights.skip, state, out,
            step.query_start, step.context_lens, step.seq_slots, weights.min_step, weights.max_step,
            mixed.stride(0), projected.stride(0), state.stride(0),
            HEADS=heads, HEAD_DIM=head_dim, GROUPS=groups, STATE_SIZE=state_size, STATE_WIDTH=launch.width,
            COLUMNS=launch.columns, IS_CHUNKED=launch.is_chunked, num_warps=launch.warps, num_stages=1, **dependent(),
        )  # fmt: skip
    return out
