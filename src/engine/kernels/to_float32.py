"""Conversion to float32, for routers that multiply in it: rounding logits to bfloat16 would change the choice."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cpu.library import INT64, POINTER, CpuLibrary, pointer

ToFloat32 = Callable[[torch.Tensor], torch.Tensor]


def to_float32_reference(x: torch.Tensor) -> torch.Tensor:
    """x: [T, H]; x itself if it is float32."""
    return x.float()


def to_float32_cpu(library: CpuLibrary) -> ToFloat32:
    empty = library.memory.empty
    call = library.function("to_float32", [POINTER, POINTER, INT64])

    def to_float32(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float32:
            return x
        out = empty(*x.shape, dtype=torch.float32)
        call(pointer(x, torch.bfloat16), out.data_ptr(), x.numel())
        return out

    return to_float32
