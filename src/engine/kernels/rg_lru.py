"""The real-gated linear recurrent unit over the tokens of a step: one element of state per channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from .cpu.library import INT, INT64, POINTER, CpuLibrary, pointer
from .recurrent_step import RecurrentStep, is_narrow, row_pointers, rows_of


@dataclass(frozen=True, slots=True)
class RgLruWeights:
    """Weights in float32, [channels] each."""

    rates: torch.Tensor  # below 0: logarithm of the decay where its gate is open
    input_bias: torch.Tensor
    decay_bias: torch.Tensor


class RgLru(Protocol):
    def __call__(
        self,
        x: torch.Tensor,
        input_gates: torch.Tensor,
        decay_gates: torch.Tensor,
        weights: RgLruWeights,
        state: torch.Tensor,
        step: RecurrentStep,
        /,
    ) -> torch.Tensor:
        """See rg_lru_reference."""
        ...


def check_widths(state: torch.Tensor, *inputs: torch.Tensor) -> None:
    """Raises ValueError if the widths do not fit together. inputs: x and the gates."""
    if any(each.shape != (len(inputs[0]), state.shape[1]) for each in inputs):
        shapes = ", ".join(str(tuple(each.shape)) for each in inputs)
        raise ValueError(f"inputs are {shapes} for states of {tuple(state.shape[1:])}")


def rg_lru_reference(
    x: torch.Tensor,
    input_gates: torch.Tensor,
    decay_gates: torch.Tensor,
    weights: RgLruWeights,
    state: torch.Tensor,
    step: RecurrentStep,
) -> torch.Tensor:
    """Token by token: h = a h + sqrt(1 - a^2) i x, without the root for the first token of a sequence; output h.

    i is sigmoid(input_gates + input_bias), a is exp(rates sigmoid(decay_gates + decay_bias)).

    Args:
        x: [T, channels], after the convolution.
        input_gates, decay_gates: [T, channels], without their bias.
        state: h of each slot, [slots, channels] in float32 or, rounded after a row's last token, bfloat16; written in
            place.
        step: the rows.
    Returns:
        [T, channels] in x's dtype; arithmetic in float32.

    Source: Griffin, arXiv:2402.19427, section 2.4; its implementation does not scale the first input.
    """
    check_widths(state, x, input_gates, decay_gates)
    inputs = x.float() * torch.sigmoid(input_gates.float() + weights.input_bias)
    logs = weights.rates * torch.sigmoid(decay_gates.float() + weights.decay_bias)
    decays, scales = logs.exp(), (1 - (2 * logs).exp()).sqrt()
    out = torch.empty_like(x)
    for start, end, slot, is_new in rows_of(step):
        own = torch.zeros_like(state[slot], dtype=torch.float32) if is_new else state[slot].float()
        for token in range(start, end):
            is_first = is_new and token == start
            own = decays[token] * own + (inputs[token] if is_first else scales[token] * inputs[token])
            out[token] = own
        state[slot] = own
    return out


def rg_lru_cpu(library: CpuLibrary, dtype: torch.dtype) -> RgLru:
    empty = library.memory.empty
    call = library.op("rg_lru", dtype, [*[POINTER] * 11, *[INT64] * 2, INT])

    def rg_lru(
        x: torch.Tensor,
        input_gates: torch.Tensor,
        decay_gates: torch.Tensor,
        weights: RgLruWeights,
        state: torch.Tensor,
        step: RecurrentStep,
    ) -> torch.Tensor:
        inputs = x, input_gates, decay_gates
        check_widths(state, *inputs)
        out = empty(*x.shape, dtype=dtype)
        *columns, rows = row_pointers(step)
        call(
            *(pointer(each, dtype) for each in inputs),
            pointer(weights.rates, torch.float32),
            pointer(weights.input_bias, torch.float32),
            pointer(weights.decay_bias, torch.float32),
            pointer(state, state.dtype),
            out.data_ptr(),
            *columns,
            rows,
            x.shape[1],
            is_narrow(state),
        )
        return out

    return rg_lru
