"""The selective state space of Mamba-2 over the tokens of a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer
from .recurrent_step import RecurrentStep, is_narrow, row_pointers, rows_of


@dataclass(frozen=True, slots=True)
class StateSpaceWeights:
    """Weights in float32, [heads] each."""

    a_log: torch.Tensor  # logarithm of the rate of decay
    dt_bias: torch.Tensor
    skip: torch.Tensor  # D: the share of the input that is added to the output
    min_step: float = 0.0
    max_step: float = math.inf


# The arguments of state_space_reference.
StateSpace = Callable[[torch.Tensor, torch.Tensor, StateSpaceWeights, torch.Tensor, RecurrentStep], torch.Tensor]


def num_groups(mixed: torch.Tensor, projected: torch.Tensor, state: torch.Tensor) -> int:
    """Raises ValueError if the widths do not fit together."""
    _, heads, state_size, head_dim = state.shape
    tokens, channels = mixed.shape
    groups, rest = divmod(channels - heads * head_dim, 2 * state_size)
    if rest or groups < 1 or heads % groups or projected.shape != (tokens, channels + heads * head_dim + heads):
        shapes = f"mixed {tuple(mixed.shape)}, projected {tuple(projected.shape)}"
        raise ValueError(f"{shapes} for states of {tuple(state.shape[1:])}")
    return groups


def state_space_reference(
    mixed: torch.Tensor,
    projected: torch.Tensor,
    weights: StateSpaceWeights,
    state: torch.Tensor,
    step: RecurrentStep,
) -> torch.Tensor:
    """Token by token: S = exp(-exp(a_log) d) S + B (d x)'; output S'C + D x.

    The time step d is softplus(dt + dt_bias), from min_step to max_step.

    Args:
        mixed: [T, C]: the inputs x of all heads, B and C of all groups, after the convolution. Heads share groups in
            order.
        projected: [T, C + heads * head_dim + heads]: the last columns are dt, the others are not read.
        state: S of each slot, [slots, heads, state_size, head_dim] in float32 or, rounded after a row's last token,
            bfloat16; written in place.
        step: the rows.
    Returns:
        [T, heads * head_dim] in float32, as all of the arithmetic.

    Source: Transformers are SSMs, arXiv:2405.21060, equation 2 with the discretisation of section 2.4.
    """
    _, heads, state_size, head_dim = state.shape
    groups = num_groups(mixed, projected, state)
    sizes = [heads * head_dim, groups * state_size, groups * state_size]
    x, b, c = torch.split(mixed.float(), sizes, dim=1)
    x = x.reshape(-1, heads, head_dim)
    b, c = (each.reshape(-1, groups, state_size).repeat_interleave(heads // groups, 1) for each in (b, c))
    steps = F.softplus(projected[:, -heads:].float() + weights.dt_bias).clamp(weights.min_step, weights.max_step)
    decay = torch.exp(-weights.a_log.exp() * steps)
    outputs = torch.empty_like(x)
    for start, end, slot, is_new in rows_of(step):
        own = torch.zeros_like(state[slot], dtype=torch.float32) if is_new else state[slot].float()
        for token in range(start, end):
            own *= decay[token, :, None, None]
            own += b[token, :, :, None] * (steps[token, :, None] * x[token])[:, None]
            outputs[token] = (own * c[token, :, :, None]).sum(1)
        state[slot] = own
    return (outputs + weights.skip[:, None] * x).flatten(1)


def state_space_cpu(library: CpuLibrary, dtype: torch.dtype) -> StateSpace:
    empty = library.memory.empty
    call = library.op("state_space", dtype, [*[POINTER] * 5, FLOAT, FLOAT, *[POINTER] * 5, *[INT64] * 5, INT])

    def state_space(
        mixed: torch.Tensor,
        projected: torch.Tensor,
        weights: StateSpaceWeights,
        state: torch.Tensor,
        step: RecurrentStep,
    ) -> torch.Tensor:
        _, heads, state_size, head_dim = state.shape
        groups = num_groups(mixed, projected, state)
        out = empty(len(mixed), heads * head_dim, dtype=torch.float32)
        call(
            pointer(mixed, dtype),
            pointer(projected, dtype),
            pointer(weights.a_log, torch.float32),
            pointer(weights.dt_bias, torch.float32),
            pointer(weights.skip, torch.float32),
            weights.min_step,
            weights.max_step,
            pointer(state, state.dtype),
            out.data_ptr(),
            *row_pointers(step),
            heads,
            head_dim,
            groups,
            state_size,
            is_narrow(state),
        )
        return out

    return state_space
