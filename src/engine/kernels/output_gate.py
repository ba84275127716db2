"""The gate of attention's outputs: a sigmoid for each element (Qwen3-Next, Qwen3.5)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cpu.library import INT64, POINTER, CpuLibrary, pointer

GateOutputs = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def gate_outputs_reference(x: torch.Tensor, projected: torch.Tensor) -> torch.Tensor:
    """x: [T, W]. projected: [T, at least W], whose last W columns are the gates.

    Returns x * sigmoid(gates), [T, W] in x's dtype; arithmetic in float32.
    """
    return (x.float() * projected[:, -x.shape[1] :].float().sigmoid()).to(x.dtype)


def gate_outputs_cpu(library: CpuLibrary, dtype: torch.dtype) -> GateOutputs:
    empty = library.memory.empty
    call = library.op("gate_outputs", dtype, [POINTER, POINTER, INT64, POINTER, INT64, INT64])

    def gate_outputs(x: torch.Tensor, projected: torch.Tensor) -> torch.Tensor:
        rows, width = x.shape
        if len(projected) != rows or projected.shape[1] < width:
            raise ValueError(f"x is {tuple(x.shape)}, projected {tuple(projected.shape)}")
        gates = pointer(projected, dtype) + (projected.shape[1] - width) * dtype.itemsize
        out = empty(rows, width, dtype=dtype)
        call(pointer(x, dtype), gates, projected.shape[1], out.data_ptr(), rows, width)
        return out

    return gate_outputs
