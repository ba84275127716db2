"""How many logits of each row exceed a bound: the rank of the token with that logit, minus one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cpu.library import INT64, POINTER, CpuLibrary, pointer

CountAbove = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def count_above_reference(logits: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """logits: [R, V] in any float type; bounds: [R] float32. Returns [R] int64."""
    return (logits.float() > bounds[:, None]).sum(-1)


def count_above_cpu(library: CpuLibrary) -> CountAbove:
    calls = {
        dtype: library.op("count_above", dtype, [POINTER] * 3 + [INT64] * 2)
        for dtype in (torch.float32, torch.bfloat16)
    }

    def count_above(logits: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
        rows, vocab_size = logits.shape
        if len(bounds) != rows:
            raise ValueError(f"{rows} rows, {len(bounds)} bounds")
        logits = logits.contiguous()
        counts = torch.empty(rows, dtype=torch.int64)
        calls[logits.dtype](
            pointer(logits, logits.dtype), pointer(bounds, torch.float32), counts.data_ptr(), rows, vocab_size
        )
        return counts

    return count_above
