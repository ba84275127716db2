"""The gate of attention's outputs: a sigmoid for each element (Qwen3-Next, Qwen3.5) or for each head (LFM3)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cpu.library import INT64, POINTER, CpuLibrary, pointer

GateOutputs = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def gate_outputs_reference(x: torch.Tensor, projected: torch.Tensor, num_gates: int) -> torch.Tensor:
    """x: [T, W]. projected: [T, at least num_gates], whose last columns are the gates, each of W / num_gates elements.

    Returns x * sigmoid(gates), [T, W] in x's dtype; arithmetic in float32.
    """
    check_gates(x, projected, num_gates)
    gates = projected[:, -num_gates:].float().sigmoid()
    gated = x.float().reshape(len(x), num_gates, x.shape[1] // num_gates) * gates[:, :, None]
    return gated.flatten(1).to(x.dtype)


def check_gates(x: torch.Tensor, projected: torch.Tensor, num_gates: int) -> None:
    """Raises ValueError if the sizes do not fit together."""
    if len(projected) != len(x) or projected.shape[1] < num_gates or x.shape[1] % num_gates:
        raise ValueError(f"x is {tuple(x.shape)}, projected {tuple(projected.shape)}, with {num_gates} gates")


def gate_outputs_cpu(library: CpuLibrary, dtype: torch.dtype) -> GateOutputs:
    empty = library.memory.empty
    call = library.op("gate_outputs", dtype, [POINTER, POINTER, INT64, POINTER, *[INT64] * 3])

    def gate_outputs(x: torch.Tensor, projected: torch.Tensor, num_gates: int) -> torch.Tensor:
        check_gates(x, projected, num_gates)
        rows, width = x.shape
        gates = pointer(projected, dtype) + (projected.shape[1] - num_gates) * dtype.itemsize
        out = empty(rows, width, dtype=dtype)
        call(pointer(x, dtype), gates, projected.shape[1], out.data_ptr(), rows, num_gates, width // num_gates)
        return out

    return gate_outputs
