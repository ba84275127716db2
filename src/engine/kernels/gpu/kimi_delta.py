"""Kimi Delta Attention: as the gated delta rule in gated_delta.py, with a decay for each row of the state.

In a chunk, decay[t, s] is a vector: the system is (I + A) u = beta (v - (decay[t, before] * k)'S), where A[t, s] is
beta[t] times the sum over rows of k[t] k[s] decay[t, s]. Its columns are computed one by one, from the last token to
the first, so that decays are exponentials of sums that only grow: products of two factors exp(sum to t) and
exp(-sum to s) would overflow.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..gated_delta import NORM_EPS
from ..kimi_delta import KimiDeltaWeights, check_widths
from ..recurrent_step import RecurrentStep
from .attention_tile import PRECISION
from .gated_delta import inverse_of
from .launch import dependent, wait
from .recurrent import CHUNK, FEW, PART, launches, load_row, product, softplus
from .rms_norm_gated import norm_groups

_EPS: tl.constexpr = tl.constexpr(NORM_EPS)


@triton.jit
def _similarities(k, q, logs, places):
    """What the tokens of a chunk see of each other. All but `places` are [parts, CHUNK, PART].

    Returns the products of each key and each query with earlier keys after their decay, [CHUNK, CHUNK] twice; the
    logarithms of decays since the chunk's begin; the keys after the decay until its end; and the logarithms of the
    decays of the whole chunk, [parts, PART].
    """
    similar = tl.zeros([CHUNK, CHUNK], tl.float32)
    seen = tl.zeros([CHUNK, CHUNK], tl.float32)
    since = tl.zeros_like(logs)
    at_end = tl.zeros_like(k)
    until_end = tl.sum(since, 1)
    for step in range(CHUNK):
        source = CHUNK - 1 - step
        is_source = (places == source)[None, :, None]
        is_later = (places >= source)[None, :, None]
        key = tl.sum(tl.where(is_source, k, 0.0), 1)
        log = tl.sum(tl.where(is_source, logs, 0.0), 1)
        decayed = tl.where(is_later, tl.exp(since), 0.0) * key[:, None, :]
        is_column = (places == source)[None, :]
        similar = tl.where(is_column, tl.sum(tl.sum(k * decayed, 2), 0)[:, None], similar)
        seen = tl.where(is_column, tl.sum(tl.sum(q * decayed, 2), 0)[:, None], seen)
        at_end = tl.where(is_source, (key * tl.exp(until_end))[:, None, :], at_end)
        since = tl.where(is_later, since + log[:, None, :], since)
        until_end += log
    return similar, seen, since, at_end, until_end


@triton.jit
def _log_of_decay(steps, rate, least_log, IS_BOUNDED: tl.constexpr):
    return least_log * tl.sigmoid(rate * steps) if IS_BOUNDED else -rate * softplus(steps)


@triton.jit
def _kimi_delta(
    mixed, beta, a, a_log, dt_bias, state, out, query_start, context_lens, seq_slots, query_scale, least_log,
    mixed_stride, beta_stride, a_stride, state_stride,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    IS_BOUNDED: tl.constexpr, IS_CHUNKED: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The rows of at most FEW tokens or, if IS_CHUNKED, the others."""
    wait(IS_DEPENDENT)
    start, count, slot, has_state = load_row(query_start, context_lens, seq_slots, tl.program_id(0))
    is_mine = (count > FEW) if IS_CHUNKED else ((count > 0) & (count <= FEW))
    if is_mine:
        head = tl.program_id(1)
        columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
        lanes = tl.arange(0, WIDTH)
        is_column, is_lane = columns < DIM, lanes < DIM
        rate = tl.exp(tl.load(a_log + head))
        own = lanes[:, None] * DIM + columns[None, :]
        is_own = is_lane[:, None] & is_column[None, :]
        state += slot * state_stride + head * DIM * DIM
        sums = tl.zeros([WIDTH, COLUMNS], tl.float32)
        if has_state:
            sums = tl.load(state + own, mask=is_own, other=0.0).to(tl.float32)
        queries = mixed + start * mixed_stride + head * DIM
        keys = queries + HEADS * DIM
        values = keys + HEADS * DIM
        beta += start * beta_stride + head
        a += start * a_stride + head * DIM
        dt_bias += head * DIM
        out += start * (HEADS * DIM) + head * DIM
        if IS_CHUNKED:
            sums = tl.reshape(sums, [WIDTH // PART, PART, COLUMNS])
            places = tl.arange(0, CHUNK)
            parts = tl.arange(0, WIDTH // PART)
            by_part = parts[:, None, None] * PART + tl.arange(0, PART)[None, None, :]
            bias = tl.load(dt_bias + by_part, mask=by_part < DIM, other=0.0)
            for begin in range(0, count, CHUNK):
                tokens = begin + places.to(tl.int64)
                is_token = tokens < count
                is_key = is_token[None, :, None] & (by_part < DIM)
                is_value = is_token[:, None] & is_column[None, :]
                at_keys = tokens[None, :, None] * mixed_stride + by_part
                k = tl.load(keys + at_keys, mask=is_key, other=0.0).to(tl.float32)
                k *= tl.rsqrt(tl.sum(tl.sum(k * k, 2), 0) + _EPS)[None, :, None]
                q = tl.load(queries + at_keys, mask=is_key, other=0.0).to(tl.float32)
                q *= (tl.rsqrt(tl.sum(tl.sum(q * q, 2), 0) + _EPS) * query_scale)[None, :, None]
                steps = tl.load(a + tokens[None, :, None] * a_stride + by_part, mask=is_key, other=0.0).to(tl.float32)
                logs = tl.where(is_key, _log_of_decay(steps + bias, rate, least_log, IS_BOUNDED), 0.0)
                v = tl.load(values + tokens[:, None] * mixed_stride + columns[None, :], mask=is_value, other=0.0)
                b = tl.sigmoid(tl.load(beta + tokens * beta_stride, mask=is_token, other=0.0).to(tl.float32))
                similar, seen, since, at_end, until_end = _similarities(k, q, logs, places)
                inverse = inverse_of(similar * b[:, None], CHUNK)
                known = product(k * tl.exp(since), sums)
                change = tl.dot(inverse, (v.to(tl.float32) - known) * b[:, None], input_precision=PRECISION)
                outputs = tl.dot(seen, change, input_precision=PRECISION)
                outputs += product(q * tl.exp(since), sums)
                tl.store(out + tokens[:, None] * (HEADS * DIM) + columns[None, :], outputs, mask=is_value)
                change = tl.broadcast_to(change[None], [WIDTH // PART, CHUNK, COLUMNS])
                sums *= tl.exp(until_end)[:, :, None]
                sums += tl.dot(tl.permute(at_end, (0, 2, 1)), change, input_precision=PRECISION)
            sums = tl.reshape(sums, [WIDTH, COLUMNS])
        else:
            bias = tl.load(dt_bias + lanes, mask=is_lane, other=0.0)
            for token in range(count):
                q = tl.load(queries + token * mixed_stride + lanes, mask=is_lane, other=0.0).to(tl.float32)
                k = tl.load(keys + token * mixed_stride + lanes, mask=is_lane, other=0.0).to(tl.float32)
                q *= tl.rsqrt(tl.sum(q * q, 0) + _EPS) * query_scale
                k *= tl.rsqrt(tl.sum(k * k, 0) + _EPS)
                v = tl.load(values + token * mixed_stride + columns, mask=is_column, other=0.0).to(tl.float32)
                b = tl.sigmoid(tl.load(beta + token * beta_stride).to(tl.float32))
                steps = tl.load(a + token * a_stride + lanes, mask=is_lane, other=0.0).to(tl.float32)
                sums *= tl.exp(_log_of_decay(steps + bias, rate, least_log, IS_BOUNDED))[:, None]
                change = (v - tl.sum(sums * k[:, None], 0)) * b
                sums += k[:, None] * change[None, :]
                tl.store(out + token * (HEADS * DIM) + columns, tl.sum(sums * q[:, None], 0), mask=is_column)
        tl.store(state + own, sums.to(state.dtype.element_ty), mask=is_own)


def kimi_delta_gpu(
    mixed: torch.Tensor,
    projected: torch.Tensor,
    a: torch.Tensor,
    z: torch.Tensor,
    weights: KimiDeltaWeights,
    state: torch.Tensor,
    step: RecurrentStep,
) -> torch.Tensor:
    """Computes kimi_delta_reference. Rows and slots may have any stride."""
    check_widths(mixed, projected, a, z, state)
    _, heads, size, _ = state.shape
    tokens, rows = len(mixed), len(step.seq_slots)
    out = torch.empty(tokens, heads * size, dtype=torch.float32, device=mixed.device)
    for launch in launches(step, tokens, size):
        _kimi_delta[(rows, heads, triton.cdiv(size, launch.columns))](
            mixed, projected[:, projected.shape[1] - heads :], a, weights.a_log, weights.dt_bias, state, out,
            step.query_start, step.context_lens, step.seq_slots, size**-0.5, weights.least_log or 0.0,
            mixed.stride(0), projected.stride(0), a.stride(0), state.stride(0),
            HEADS=heads, DIM=size, WIDTH=launch.width, COLUMNS=launch.columns, IS_BOUNDED=weights.least_log is not None,
            IS_CHUNKED=launch.is_chunked, num_warps=launch.warps, num_stages=1, **dependent(),
        )  # fmt: skip
    return norm_groups(out, z, 0, weights.norm, "before_gate", weights.eps, heads, gate="sigmoid")
