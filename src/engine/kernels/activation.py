"""Activations of feed-forward blocks: of a gate that multiplies the up projection, or of a single projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, get_args

import torch
import torch.nn.functional as F

from ...model.activations import Activation
from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer

# silu: Elfwing et al., arXiv:1702.03118. gelu, with the error function, and gelu_tanh, its approximation by tanh:
# Hendrycks and Gimpel, arXiv:1606.08415. relu2, the square of relu: So et al., arXiv:2109.08668.
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)

_NUMBERS = {activation: number for number, activation in enumerate(ACTIVATIONS)}  # of cpu/activation.h


class Activate(Protocol):
    def __call__(self, x: torch.Tensor, activation: Activation = "silu", /) -> torch.Tensor: ...


class LimitGates(Protocol):
    def __call__(self, gate_up: torch.Tensor, limit: float, /) -> torch.Tensor: ...


class GateInputs(Protocol):
    def __call__(
        self, gates: torch.Tensor, inputs: torch.Tensor, activation: Activation = "silu", /
    ) -> torch.Tensor: ...


def activate_and_mul_reference(gate_up: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    """gate_up: [T, 2 * I], gate first. Returns activation(gate) * up, [T, I] in the same dtype; arithmetic in float32.

    Source: GLU Variants Improve Transformer, arXiv:2002.05202.
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (_FUNCTIONS[activation](gate) * up).to(gate_up.dtype)


def limit_gates_reference(gate_up: torch.Tensor, limit: float) -> torch.Tensor:
    """gate_up: [T, 2 * I], gate first. Gates are at most `limit`, and ups between it and its negative. In place."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate.clamp_(max=limit)
    up.clamp_(-limit, limit)
    return gate_up


def activate_reference(x: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    """x: [T, I]. Returns activation(x) in the same dtype; arithmetic in float32."""
    return _FUNCTIONS[activation](x.float()).to(x.dtype)


def gate_inputs_reference(gates: torch.Tensor, inputs: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    """activation(gates) * inputs, both [T, I], in the same dtype; arithmetic in float32.

    The rows of inputs need not follow each other: they may be columns of a wider matrix.
    """
    return (_FUNCTIONS[activation](gates.float()) * inputs.float()).to(gates.dtype)


_FUNCTIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


def activate_and_mul_cpu(library: CpuLibrary, dtype: torch.dtype) -> Activate:
    return _activate_cpu(library, "activate_and_mul", dtype, inputs=2)


def activate_cpu(library: CpuLibrary, dtype: torch.dtype) -> Activate:
    return _activate_cpu(library, "activate", dtype, inputs=1)


def _activate_cpu(library: CpuLibrary, name: str, dtype: torch.dtype, inputs: int) -> Activate:
    """inputs: elements of a row for each element of the result."""
    empty = library.memory.empty
    call = library.op(name, dtype, [POINTER, POINTER, INT64, INT64, INT])

    def activate(x: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
        rows, width = x.shape[0], x.shape[1] // inputs
        out = empty(rows, width, dtype=dtype)
        call(pointer(x, dtype), out.data_ptr(), rows, width, _NUMBERS[activation])
        return out

    return activate


def gate_inputs_cpu(library: CpuLibrary, dtype: torch.dtype) -> GateInputs:
    empty = library.memory.empty
    call = library.op("gate_inputs", dtype, [POINTER, POINTER, INT64, POINTER, INT64, INT64, INT])

    def gate_inputs(gates: torch.Tensor, inputs: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
        rows, width = gates.shape
        if inputs.shape != gates.shape or inputs.dtype is not dtype or (width > 1 and inputs.stride(1) != 1):
            raise ValueError(f"gates are {tuple(gates.shape)}, inputs {tuple(inputs.shape)} of {inputs.dtype}")
        out = empty(rows, width, dtype=dtype)
        stride = inputs.stride(0)
        call(pointer(gates, dtype), inputs.data_ptr(), stride, out.data_ptr(), rows, width, _NUMBERS[activation])
        return out

    return gate_inputs


def limit_gates_cpu(library: CpuLibrary, dtype: torch.dtype) -> LimitGates:
    call = library.op("limit_gates", dtype, [POINTER, INT64, INT64, FLOAT])

    def limit_gates(gate_up: torch.Tensor, limit: float) -> torch.Tensor:
        call(pointer(gate_up, dtype), gate_up.shape[0], gate_up.shape[1] // 2, limit)
        return gate_up

    return limit_gates
