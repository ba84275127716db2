"""The selective state space of Mamba over the tokens of a step, and the gate of its outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from .cpu.library import INT, INT64, POINTER, CpuLibrary, pointer
from .recurrent_step import RecurrentStep, is_narrow, row_pointers, rows_of


@dataclass(frozen=True, slots=True)
class SelectiveScanWeights:
    """Weights in float32."""

    rates: torch.Tensor  # [state_size, channels], below 0: of the change of each element by itself
    dt_bias: torch.Tensor  # [channels]
    skip: torch.Tensor  # [channels], D: the share of the input that is added to the output


class SelectiveScan(Protocol):
    def __call__(
        self,
        x: torch.Tensor,
        projected: torch.Tensor,
        steps: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        weights: SelectiveScanWeights,
        state: torch.Tensor,
        step: RecurrentStep,
        /,
    ) -> torch.Tensor:
        """See selective_scan_reference."""
        ...


def check_widths(state: torch.Tensor, *inputs: torch.Tensor) -> None:
    """Raises ValueError if the widths do not fit together. inputs: x, projected, steps, b and c."""
    _, state_size, channels = state.shape
    keys = groups_of(inputs[3], state) * state_size
    widths = channels, 2 * channels, channels, keys, keys
    fits = keys and channels % (keys // state_size) == 0
    if not fits or any(each.shape != (len(inputs[0]), width) for each, width in zip(inputs, widths, strict=True)):
        shapes = ", ".join(str(tuple(each.shape)) for each in inputs)
        raise ValueError(f"inputs are {shapes} for states of {tuple(state.shape[1:])}")


def groups_of(b: torch.Tensor, state: torch.Tensor) -> int:
    """Groups of consecutive channels, each with B and C of its own."""
    return b.shape[1] // state.shape[1]


def selective_scan_reference(
    x: torch.Tensor,
    projected: torch.Tensor,
    steps: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    weights: SelectiveScanWeights,
    state: torch.Tensor,
    step: RecurrentStep,
) -> torch.Tensor:
    """Token by token: S = exp(rates d) S + B (d x)'; output (S'C + D x) silu(z).

    The time step d of a channel is softplus(steps + dt_bias).

    Args:
        x: [T, channels], after the convolution.
        projected: [T, 2 * channels]: the last columns are the gates z, the others are not read.
        steps: [T, channels], the time steps without their bias.
        b, c: [T, groups * state_size], of groups of consecutive channels.
        state: S of each slot, [slots, state_size, channels] in float32 or, rounded after a row's last token, bfloat16;
            written in place.
        step: the rows.
    Returns:
        [T, channels] in x's dtype; arithmetic in float32.

    Source: Mamba, arXiv:2312.00752, section 3, with the discretisation of its implementation: B d for B.
    """
    check_widths(state, x, projected, steps, b, c)
    dtype = x.dtype
    x, projected, steps, b, c = (each.float() for each in (x, projected, steps, b, c))
    steps = F.softplus(steps + weights.dt_bias)
    groups = groups_of(b, state)
    b, c = (  # [T, state_size, channels]
        each.view(len(each), groups, state.shape[1]).repeat_interleave(x.shape[1] // groups, 1).transpose(1, 2)
        for each in (b, c)
    )
    outputs = torch.empty_like(x)
    for start, end, slot, is_new in rows_of(step):
        own = torch.zeros_like(state[slot], dtype=torch.float32) if is_new else state[slot].float()
        for token in range(start, end):
            own *= torch.exp(weights.rates * steps[token])
            own += b[token] * (steps[token] * x[token])
            outputs[token] = (own * c[token]).sum(0)
        state[slot] = own
    gates = projected[:, x.shape[1] :]
    return ((outputs + weights.skip * x) * F.silu(gates)).to(dtype)


def selective_scan_cpu(library: CpuLibrary, dtype: torch.dtype) -> SelectiveScan:
    empty = library.memory.empty
    call = library.op("selective_scan", dtype, [*[POINTER] * 13, *[INT64] * 4, INT])

    def selective_scan(
        x: torch.Tensor,
        projected: torch.Tensor,
        steps: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        weights: SelectiveScanWeights,
        state: torch.Tensor,
        step: RecurrentStep,
    ) -> torch.Tensor:
        inputs = x, projected, steps, b, c
        check_widths(state, *inputs)
        _, state_size, channels = state.shape
        out = empty(len(x), channels, dtype=dtype)
        *columns, rows = row_pointers(step)
        call(
            *(pointer(each, dtype) for each in inputs),
            pointer(weights.rates, torch.float32),
            pointer(weights.dt_bias, torch.float32),
            pointer(weights.skip, torch.float32),
            pointer(state, state.dtype),
            out.data_ptr(),
            *columns,
            rows,
            channels,
            state_size,
            groups_of(b, state),
            is_narrow(state),
        )
        return out

    return selective_scan
