"""Largest logit and sum of weights of each row, from which top-p and log-probabilities are computed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cpu.library import INT64, POINTER, CpuLibrary, pointer
from .sample_tokens import softmax_weights

SoftmaxMass = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def softmax_mass_reference(
    logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums exp((logit - largest) / temperature) over the tokens that min_p keeps.

    Args:
        logits: [R, V] in any float type; arithmetic in float32.
        temperature: [R] float32, greater than 0.
        min_p: [R] float32; tokens less than min_p times as likely as the best are left out.
    Returns:
        largest [R] float32 and mass [R] float64.
    """
    mass = softmax_weights(logits, temperature, min_p).sum(-1, dtype=torch.float64)
    return logits.amax(-1).float(), mass


def softmax_mass_cpu(library: CpuLibrary) -> SoftmaxMass:
    calls = {
        dtype: library.op("softmax_mass", dtype, [POINTER] * 5 + [INT64] * 2)
        for dtype in (torch.float32, torch.bfloat16)
    }

    def softmax_mass(
        logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, vocab_size = logits.shape
        if not len(temperature) == len(min_p) == rows:
            raise ValueError(f"{rows} rows, {len(temperature)} temperatures, {len(min_p)} min_p")
        logits = logits.contiguous()
        largest, mass = torch.empty(rows), torch.empty(rows, dtype=torch.float64)
        calls[logits.dtype](
            pointer(logits, logits.dtype),
            pointer(temperature, torch.float32),
            pointer(min_p, torch.float32),
            largest.data_ptr(),
            mass.data_ptr(),
            rows,
            vocab_size,
        )
        return largest, mass

    return softmax_mass
