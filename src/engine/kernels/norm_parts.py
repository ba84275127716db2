"""Splits each row into parts, and norms each part by itself: the compressed time steps, B and C of Mamba."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer

Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class PartNormWeights:
    sizes: tuple[int, int, int]  # columns of the parts
    has_norm: bool
    weight: torch.Tensor | None = None  # [columns] in float32; None for a norm without weights
    eps: float = 0.0

    def check(self, x: torch.Tensor) -> None:
        """Raises ValueError if x has other columns."""
        if x.shape[1] != sum(self.sizes):
            raise ValueError(f"x is {tuple(x.shape)} for parts of {self.sizes}")


NormParts = Callable[[torch.Tensor, PartNormWeights], Parts]  # the arguments of norm_parts_reference


def norm_parts_reference(x: torch.Tensor, weights: PartNormWeights) -> Parts:
    """The parts of x, [T, size] each in its dtype, divided by their root mean squares; arithmetic in float32.

    Without a norm they may be views of x.
    """
    weights.check(x)
    parts = list(torch.split(x, list(weights.sizes), 1))
    if weights.has_norm:
        gains = [None] * 3 if weights.weight is None else torch.split(weights.weight, list(weights.sizes))
        for index, (part, gain) in enumerate(zip(parts, gains, strict=True)):
            wide = part.float()
            normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + weights.eps)
            parts[index] = (normed if gain is None else normed * gain).to(x.dtype)
    return parts[0], parts[1], parts[2]


def norm_parts_cpu(library: CpuLibrary, dtype: torch.dtype) -> NormParts:
    empty = library.memory.empty
    call = library.op("norm_parts", dtype, [POINTER, INT64, *[INT64] * 3, POINTER, FLOAT, INT, *[POINTER] * 3])

    def norm_parts(x: torch.Tensor, weights: PartNormWeights) -> Parts:
        weights.check(x)
        first, second, third = (empty(len(x), size, dtype=dtype) for size in weights.sizes)
        call(
            pointer(x, dtype),
            len(x),
            *weights.sizes,
            None if weights.weight is None else pointer(weights.weight, torch.float32),
            weights.eps,
            int(weights.has_norm),
            *(part.data_ptr() for part in (first, second, third)),
        )
        return first, second, third

    return norm_parts
