"""The gated delta rule: a program per row, value head and block of the state's columns, as recurrent.py describes.

The columns of a state do not depend on each other, but the norm of a head's outputs depends on all of them: it is a
separate launch, with the gate.

A longer row is divided into chunks (arXiv:2412.06464, section 3.3). With decay[t, s] from after token s to after token
t, the changes u of a chunk's tokens, as if the state were S at its begin, obey u[t] = beta[t] (v[t] - decay[t, before]
S'k[t] - the sum over s < t of decay[t, s] k[t]'k[s] u[s]). This is a triangular system:
(I + A) u = beta (v - decay K S). With its inverse all are products: the outputs are (Q K' * decay) u + decay Q S, and
the state after the chunk is decay[last, before] S + K' (decay u).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..gated_delta import NORM_EPS, GatedDeltaWeights, num_key_heads
from ..recurrent_step import RecurrentStep
from .attention_tile import PRECISION
from .launch import dependent, wait
from .recurrent import CHUNK, FEW, PART, launches, load_row, product, softplus, sums_between
from .rms_norm_gated import norm_groups

_EPS: tl.constexpr = tl.constexpr(NORM_EPS)


@triton.jit
def inverse_of(lower, SIZE: tl.constexpr):
    """The inverse of I + lower. lower: [SIZE, SIZE], of which only what is below the diagonal is taken.

    That of blocks of 1, 2, 4 ... on the diagonal: of two such blocks with C below the first one, whose inverses are A
    and B, the inverse has -B C A below the first one.
    """
    places = tl.arange(0, SIZE)
    inverse = tl.where(places[:, None] == places[None, :], 1.0, 0.0)
    side = 1
    while side < SIZE:
        blocks, pairs = places // side, places // (2 * side)
        is_between = (pairs[:, None] == pairs[None, :]) & (blocks[:, None] > blocks[None, :])
        between = tl.dot(tl.where(is_between, lower, 0.0), inverse, input_precision=PRECISION)
        inverse -= tl.dot(inverse, between, input_precision=PRECISION)
        side *= 2
    return inverse


@triton.jit
def _gated_delta(
    mixed, gates, a_log, dt_bias, state, out, query_start, context_lens, seq_slots, query_scale, beta_scale,
    mixed_stride, gates_stride, state_stride,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY_DIM: tl.constexpr, KEY_WIDTH: tl.constexpr,
    VALUE_DIM: tl.constexpr, COLUMNS: tl.constexpr, IS_CHUNKED: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The rows of at most FEW tokens or, if IS_CHUNKED, the others."""
    wait(IS_DEPENDENT)
    start, count, slot, has_state = load_row(query_start, context_lens, seq_slots, tl.program_id(0))
    is_mine = (count > FEW) if IS_CHUNKED else ((count > 0) & (count <= FEW))
    if is_mine:
        head = tl.program_id(1)
        columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
        lanes = tl.arange(0, KEY_WIDTH)
        is_column, is_lane = columns < VALUE_DIM, lanes < KEY_DIM
        rate = -tl.exp(tl.load(a_log + head))
        bias = tl.load(dt_bias + head)
        own = lanes[:, None] * VALUE_DIM + columns[None, :]
        is_own = is_lane[:, None] & is_column[None, :]
        state += slot * state_stride + head * KEY_DIM * VALUE_DIM
        sums = tl.zeros([KEY_WIDTH, COLUMNS], tl.float32)
        if has_state:
            sums = tl.load(state + own, mask=is_own, other=0.0).to(tl.float32)
        share: tl.constexpr = HEADS // KEY_HEADS
        queries = mixed + start * mixed_stride + head // share * KEY_DIM
        keys = queries + KEY_HEADS * KEY_DIM
        values = mixed + start * mixed_stride + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM
        gates += start * gates_stride + head  # b, and a after the b of all heads
        out += start * (HEADS * VALUE_DIM) + head * VALUE_DIM
        if IS_CHUNKED:
            sums = tl.reshape(sums, [KEY_WIDTH // PART, PART, COLUMNS])
            places = tl.arange(0, CHUNK)
            parts = tl.arange(0, KEY_WIDTH // PART)
            by_part = parts[:, None, None] * PART + tl.arange(0, PART)[None, None, :]
            for begin in range(0, count, CHUNK):
                tokens = begin + places.to(tl.int64)
                is_token = tokens < count
                is_key = is_token[None, :, None] & (by_part < KEY_DIM)
                is_value = is_token[:, None] & is_column[None, :]
                at_keys = tokens[None, :, None] * mixed_stride + by_part
                k = tl.load(keys + at_keys, mask=is_key, other=0.0).to(tl.float32)
                k *= tl.rsqrt(tl.sum(tl.sum(k * k, 2), 0) + _EPS)[None, :, None]
                v = tl.load(values + tokens[:, None] * mixed_stride + columns[None, :], mask=is_value, other=0.0)
                b = tl.load(gates + tokens * gates_stride, mask=is_token, other=0.0).to(tl.float32)
                beta = beta_scale * tl.sigmoid(b)
                a = tl.load(gates + HEADS + tokens * gates_stride, mask=is_token, other=0.0).to(tl.float32)
                logs = tl.where(is_token, rate * softplus(a + bias), 0.0)
                decays = tl.exp(sums_between(logs, CHUNK))
                since = tl.exp(tl.cumsum(logs, 0))  # the chunk's begin
                transposed = tl.permute(k, (0, 2, 1))
                similar = product(k, transposed) * decays * beta[:, None]
                inverse = inverse_of(similar, CHUNK)
                known = product(k, sums) * since[:, None]
                change = tl.dot(inverse, (v.to(tl.float32) - known) * beta[:, None], input_precision=PRECISION)
                q = tl.load(queries + at_keys, mask=is_key, other=0.0).to(tl.float32)
                q *= (tl.rsqrt(tl.sum(tl.sum(q * q, 2), 0) + _EPS) * query_scale)[None, :, None]
                seen = product(q, transposed) * decays
                outputs = tl.dot(seen, change, input_precision=PRECISION)
                outputs += product(q, sums) * since[:, None]
                tl.store(out + tokens[:, None] * (HEADS * VALUE_DIM) + columns[None, :], outputs, mask=is_value)
                left = tl.sum(tl.where((places == CHUNK - 1)[:, None], decays, 0.0), 0)  # of each change, at the end
                change = tl.broadcast_to((change * left[:, None])[None], [KEY_WIDTH // PART, CHUNK, COLUMNS])
                sums *= tl.exp(tl.sum(logs, 0))
                sums += tl.dot(transposed, change, input_precision=PRECISION)
            sums = tl.reshape(sums, [KEY_WIDTH, COLUMNS])
        else:
            for token in range(count):
                q = tl.load(queries + token * mixed_stride + lanes, mask=is_lane, other=0.0).to(tl.float32)
                k = tl.load(keys + token * mixed_stride + lanes, mask=is_lane, other=0.0).to(tl.float32)
                q *= tl.rsqrt(tl.sum(q * q, 0) + _EPS) * query_scale
                k *= tl.rsqrt(tl.sum(k * k, 0) + _EPS)
                v = tl.load(values + token * mixed_stride + columns, mask=is_column, other=0.0).to(tl.float32)
                beta = beta_scale * tl.sigmoid(tl.load(gates + token * gates_stride).to(tl.float32))
                a = tl.load(gates + HEADS + token * gates_stride).to(tl.float32)
                sums *= tl.exp(rate * softplus(a + bias))
                change = (v - tl.sum(sums * k[:, None], 0)) * beta
                sums += k[:, None] * change[None, :]
                tl.store(out + token * (HEADS * VALUE_DIM) + columns, tl.sum(sums * q[:, None], 0), mask=is_column)
        tl.store(state + own, sums.to(state.dtype.element_ty), mask=is_own)


def gated_delta_gpu(
    mixed: torch.Tensor,
    projected: torch.Tensor,
    weights: GatedDeltaWeights,
    state: torch.Tensor,
    step: RecurrentStep,
) -> torch.Tensor:
    """Computes gated_delta_reference. Rows and slots may have any stride."""
    _, heads, key_dim, value_dim = state.shape
    key_heads = num_key_heads(mixed, projected, state)
    tokens, channels = mixed.shape
    width = heads * value_dim
    rows = len(step.seq_slots)
    out = torch.empty(tokens, width, dtype=torch.float32, device=mixed.device)
    for launch in launches(step, tokens, key_dim):
        _gated_delta[(rows, heads, triton.cdiv(value_dim, launch.columns))](
            mixed, projected[:, channels + width :], weights.a_log, weights.dt_bias, state, out,
            step.query_start, step.context_lens, step.seq_slots, key_dim**-0.5, weights.beta_scale,
            mixed.stride(0), projected.stride(0), state.stride(0),
            KEY_HEADS=key_heads, HEADS=heads, KEY_DIM=key_dim, KEY_WIDTH=launch.width, VALUE_DIM=value_dim,
            COLUMNS=launch.columns, IS_CHUNKED=launch.is_chunked, num_warps=launch.warps, num_stages=1, **dependent(),
        )  # fmt: skip
    return norm_groups(out, projected, channels, weights.norm, "before_gate", weights.eps, heads, gate=weights.gate)
