"""The gated delta rule over the tokens of a step, and the gated RMS norm of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ...model.mixers import GateActivation
from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer
from .recurrent_step import RecurrentStep, is_narrow, row_pointers, rows_of

NORM_EPS = 1e-6  # of queries and keys


@dataclass(frozen=True, slots=True)
class GatedDeltaWeights:
    """Weights in float32."""

    a_log: torch.Tensor  # [value heads], logarithm of the rate of decay
    dt_bias: torch.Tensor  # [value heads]
    norm: torch.Tensor  # [value_dim]
    eps: float  # of the norm
    beta_scale: float = 1.0
    gate: GateActivation = "silu"


# The arguments of gated_delta_reference.
GatedDelta = Callable[[torch.Tensor, torch.Tensor, GatedDeltaWeights, torch.Tensor, RecurrentStep], torch.Tensor]


def num_key_heads(mixed: torch.Tensor, projected: torch.Tensor, state: torch.Tensor) -> int:
    """Raises ValueError if the widths do not fit together."""
    _, heads, key_dim, value_dim = state.shape
    key_heads, rest = divmod(mixed.shape[1] - heads * value_dim, 2 * key_dim)
    if rest or key_heads < 1 or heads % key_heads:
        raise ValueError(f"{mixed.shape[1]} channels for states of {tuple(state.shape[1:])}")
    if projected.shape != (len(mixed), mixed.shape[1] + heads * value_dim + 2 * heads):
        raise ValueError(f"projected is {tuple(projected.shape)}, mixed {tuple(mixed.shape)}")
    return key_heads


def gated_delta_reference(
    mixed: torch.Tensor,
    projected: torch.Tensor,
    weights: GatedDeltaWeights,
    state: torch.Tensor,
    step: RecurrentStep,
) -> torch.Tensor:
    """Token by token: S = g S; S = S + k (beta (v - S'k))'; output S'q, normed and gated by silu(z) or sigmoid(z).

    Queries and keys are divided by their lengths, queries also by the square root of key_dim.
    beta = beta_scale * sigmoid(b), and g = exp(-exp(a_log) * softplus(a + dt_bias)).

    Args:
        mixed: [T, C]: queries and keys of all key heads, values of all value heads, after the convolution. Value heads
            share key heads in order.
        projected: [T, C + value heads * value_dim + 2 * value heads]: C columns that are not read, then z, b and a.
        state: S of each slot, [slots, value heads, key_dim, value_dim] in float32 or, rounded after a row's last token,
            bfloat16; written in place.
        step: the rows.
    Returns:
        [T, value heads * value_dim] in mixed's dtype; arithmetic in float32.

    Source: Gated Delta Networks, arXiv:2412.06464, equation 10.
    """
    _, heads, key_dim, value_dim = state.shape
    key_heads = num_key_heads(mixed, projected, state)
    sizes = [key_heads * key_dim, key_heads * key_dim, heads * value_dim]
    q, k, v = torch.split(mixed.float(), sizes, dim=1)
    _, z, b, a = torch.split(projected.float(), [mixed.shape[1], heads * value_dim, heads, heads], dim=1)
    share = heads // key_heads
    q = (unit(q.reshape(-1, key_heads, key_dim)) * key_dim**-0.5).repeat_interleave(share, 1)
    k = unit(k.reshape(-1, key_heads, key_dim)).repeat_interleave(share, 1)
    v, z = v.reshape(-1, heads, value_dim), z.reshape(-1, heads, value_dim)
    beta = weights.beta_scale * b.sigmoid()
    decay = torch.exp(-weights.a_log.exp() * F.softplus(a + weights.dt_bias))
    outputs = torch.empty_like(v)
    for start, end, slot, is_new in rows_of(step):
        own = torch.zeros_like(state[slot], dtype=torch.float32) if is_new else state[slot].float()
        for token in range(start, end):
            own *= decay[token, :, None, None]
            key = k[token, :, :, None]
            change = (v[token] - (own * key).sum(1)) * beta[token, :, None]
            own += key * change[:, None]
            outputs[token] = (own * q[token, :, :, None]).sum(1)
        state[slot] = own
    normed = outputs * torch.rsqrt(outputs.pow(2).mean(-1, keepdim=True) + weights.eps) * weights.norm
    return (normed * (F.silu(z) if weights.gate == "silu" else z.sigmoid())).flatten(1).to(mixed.dtype)


def unit(x: torch.Tensor) -> torch.Tensor:
    """Vectors of length 1 in the direction of x's last dimension."""
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + NORM_EPS)


def gated_delta_cpu(library: CpuLibrary, dtype: torch.dtype) -> GatedDelta:
    empty = library.memory.empty
    call = library.op("gated_delta", dtype, [*[POINTER] * 5, FLOAT, FLOAT, INT, *[POINTER] * 5, *[INT64] * 5, INT])

    def gated_delta(
        mixed: torch.Tensor,
        projected: torch.Tensor,
        weights: GatedDeltaWeights,
        state: torch.Tensor,
        step: RecurrentStep,
    ) -> torch.Tensor:
        _, heads, key_dim, value_dim = state.shape
        key_heads = num_key_heads(mixed, projected, state)
        out = empty(len(mixed), heads * value_dim, dtype=dtype)
        call(
            pointer(mixed, dtype),
            pointer(projected, dtype),
            pointer(weights.a_log, torch.float32),
            pointer(weights.dt_bias, torch.float32),
            pointer(weights.norm, torch.float32),
            weights.eps,
            weights.beta_scale,
            int(weights.gate == "silu"),
            pointer(state, state.dtype),
            out.data_ptr(),
            *row_pointers(step),
            key_heads,
            heads,
            key_dim,
            value_dim,
            is_narrow(state),
        )
        return out

    return gated_delta
