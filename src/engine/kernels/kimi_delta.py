"""The gated delta rule with a decay for each row of the state (Kimi Delta Attention), then a norm and a gate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer
from .gated_delta import unit
from .recurrent_step import RecurrentStep, is_narrow, row_pointers, rows_of


@dataclass(frozen=True, slots=True)
class KimiDeltaWeights:
    """Weights in float32, of H heads with D elements."""

    a_log: torch.Tensor  # [H], logarithm of the rate of decay
    dt_bias: torch.Tensor  # [H * D]
    norm: torch.Tensor  # [D]
    eps: float  # of the norm
    least_log: float | None = None  # what the logarithm of a decay is not below; None: it has no bound


# The arguments of kimi_delta_reference.
KimiDelta = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, KimiDeltaWeights, torch.Tensor, RecurrentStep],
    torch.Tensor,
]


def check_widths(
    mixed: torch.Tensor, projected: torch.Tensor, a: torch.Tensor, z: torch.Tensor, state: torch.Tensor
) -> None:
    """Raises ValueError if the widths do not fit together."""
    _, heads, rows, columns = state.shape
    tokens, width = len(mixed), heads * rows
    found = (*mixed.shape, *a.shape, *z.shape)
    is_wide = len(projected) == tokens and projected.shape[1] >= heads
    if rows != columns or found != (tokens, 3 * width, tokens, width, tokens, width) or not is_wide:
        shapes = ", ".join(str(tuple(each.shape)) for each in (mixed, projected, a, z))
        raise ValueError(f"mixed, projected, a and z are {shapes} for states of {tuple(state.shape[1:])}")


def kimi_delta_reference(
    mixed: torch.Tensor,
    projected: torch.Tensor,
    a: torch.Tensor,
    z: torch.Tensor,
    weights: KimiDeltaWeights,
    state: torch.Tensor,
    step: RecurrentStep,
) -> torch.Tensor:
    """Token by token: S = diag(g) S; S = S + k (sigmoid(b) (v - S'k))'; output S'q, normed and gated by sigmoid(z).

    Queries and keys are divided by their lengths, queries also by the square root of D.
    g, one for each row of a head's state, is exp(-exp(a_log) * softplus(a + dt_bias)) or, with a least logarithm,
    exp(least_log * sigmoid(exp(a_log) * (a + dt_bias))).

    Args:
        mixed: [T, 3 * H * D]: queries, keys and values of all heads, after the convolution.
        projected: [T, at least H], whose last H columns are b.
        a: [T, H * D].
        z: [T, H * D].
        state: S of each slot, [slots, H, D, D] in float32 or, rounded after a row's last token, bfloat16; written in
            place.
        step: the rows.
    Returns:
        [T, H * D] in mixed's dtype; arithmetic in float32.

    Source: Kimi Linear, arXiv:2510.26692, equation 1.
    """
    check_widths(mixed, projected, a, z, state)
    _, heads, size, _ = state.shape
    q, k, v = (part.reshape(-1, heads, size) for part in mixed.float().chunk(3, dim=1))
    q, k = unit(q) * size**-0.5, unit(k)
    steps, rate = (a.float() + weights.dt_bias).view(-1, heads, size), weights.a_log.exp()[:, None]
    if weights.least_log is None:
        decay = torch.exp(-rate * F.softplus(steps))
    else:
        decay = torch.exp(weights.least_log * torch.sigmoid(rate * steps))
    rates = projected[:, -heads:].float().sigmoid()
    outputs = torch.empty_like(v)
    for start, end, slot, is_new in rows_of(step):
        own = torch.zeros_like(state[slot], dtype=torch.float32) if is_new else state[slot].float()
        for token in range(start, end):
            own *= decay[token, :, :, None]
            key = k[token, :, :, None]
            change = (v[token] - (own * key).sum(1)) * rates[token, :, None]
            own += key * change[:, None]
            outputs[token] = (own * q[token, :, :, None]).sum(1)
        state[slot] = own
    normed = outputs * torch.rsqrt(outputs.pow(2).mean(-1, keepdim=True) + weights.eps) * weights.norm
    return (normed.flatten(1) * z.float().sigmoid()).to(mixed.dtype)


def kimi_delta_cpu(library: CpuLibrary, dtype: torch.dtype) -> KimiDelta:
    empty = library.memory.empty
    arguments = [POINTER, POINTER, INT64, *[POINTER] * 5, FLOAT, FLOAT, *[POINTER] * 5, *[INT64] * 3, INT]
    call = library.op("kimi_delta", dtype, arguments)

    def kimi_delta(
        mixed: torch.Tensor,
        projected: torch.Tensor,
        a: torch.Tensor,
        z: torch.Tensor,
        weights: KimiDeltaWeights,
        state: torch.Tensor,
        step: RecurrentStep,
    ) -> torch.Tensor:
        check_widths(mixed, projected, a, z, state)
        _, heads, size, _ = state.shape
        out = empty(len(mixed), heads * size, dtype=dtype)
        call(
            pointer(mixed, dtype),
            pointer(projected, dtype),
            projected.shape[1],
            pointer(a, dtype),
            pointer(z, dtype),
            pointer(weights.a_log, torch.float32),
            pointer(weights.dt_bias, torch.float32),
            pointer(weights.norm, torch.float32),
            weights.eps,
            0.0 if weights.least_log is None else weights.least_log,
            pointer(state, state.dtype),
            out.data_ptr(),
            *row_pointers(step),
            heads,
            size,
            is_narrow(state),
        )
        return out

    return kimi_delta
