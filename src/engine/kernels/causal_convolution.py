"""Causal convolution of each channel over the last tokens of a sequence, whose inputs are kept between steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F

from .cpu.library import INT, INT64, POINTER, CpuLibrary, pointer
from .recurrent_step import RecurrentStep, row_pointers, rows_of

Kind = Literal["silu", "gated", "plain"]
KINDS: tuple[Kind, ...] = ("silu", "gated", "plain")  # the order is that of the enum in cpu/causal_convolution.cpp


# The arguments of causal_convolution_reference.
CausalConvolution = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, RecurrentStep, Kind], torch.Tensor
]


def causal_convolution_reference(
    x: torch.Tensor,
    taps: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    step: RecurrentStep,
    kind: Kind,
) -> torch.Tensor:
    """The sum of a channel's last W inputs times its taps, of every token of the step.

    Args:
        x: silu: [T, at least C], of which the first C columns are the inputs, and the result is activated by silu.
            gated: [T, 3 * C]: a gate of the inputs, a gate of the result, and the inputs. plain: as silu, without it.
        taps: [W, C] in float32, the oldest token's first.
        bias: [C] in float32, or None.
        state: [slots, W - 1, C] in x's dtype, the last inputs of each sequence, the newest last; written in place.
        step: the rows.
    Returns:
        [T, C] in x's dtype; arithmetic in float32. Gated inputs are rounded to x's dtype, as the state holds them.
    """
    width, channels = taps.shape
    after: torch.Tensor | None = None
    inputs = x[:, :channels]
    if kind == "gated":
        before, after, given = torch.split(x, channels, dim=1)
        inputs = before * given
    out = torch.empty(len(x), channels, dtype=x.dtype, device=x.device)
    for start, end, slot, is_new in rows_of(step):
        if is_new:
            state[slot].zero_()
        seen = torch.cat((state[slot], inputs[start:end]))
        state[slot] = seen[end - start :]
        wide = seen.float()
        total = torch.zeros(end - start, channels, device=x.device) if bias is None else bias.expand(end - start, -1)
        for tap in range(width):
            total = total + wide[tap : tap + end - start] * taps[tap]
        if after is not None:
            total = total * after[start:end].float()
        out[start:end] = F.silu(total) if kind == "silu" else total
    return out


def causal_convolution_cpu(library: CpuLibrary, dtype: torch.dtype) -> CausalConvolution:
    empty = library.memory.empty
    arguments = [POINTER, INT64, *[POINTER] * 7, INT64, INT64, INT, INT]
    call = library.op("causal_convolution", dtype, arguments)

    def causal_convolution(
        x: torch.Tensor,
        taps: torch.Tensor,
        bias: torch.Tensor | None,
        state: torch.Tensor,
        step: RecurrentStep,
        kind: Kind,
    ) -> torch.Tensor:
        width, channels = taps.shape
        if state.shape[1:] != (width - 1, channels) or x.shape[1] < channels * (3 if kind == "gated" else 1):
            raise ValueError(f"x is {tuple(x.shape)}, taps {tuple(taps.shape)}, state {tuple(state.shape)}")
        out = empty(len(x), channels, dtype=dtype)
        call(
            pointer(x, dtype),
            x.shape[1],
            pointer(taps, torch.float32),
            None if bias is None else pointer(bias, torch.float32),
            pointer(state, dtype),
            out.data_ptr(),
            *row_pointers(step),
            channels,
            width,
            KINDS.index(kind),
        )
        return out

    return causal_convolution
