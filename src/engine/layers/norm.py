"""RMSNorm: its weight and eps. The next linear layer computes it, fused into one op if a kernel supports that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import torch

from .loading import TensorReader


class RMSNorm:
    """Zhang and Sennrich, arXiv:1910.07467."""

    def __init__(self, name: str, width: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        self.name = name
        self.eps = eps
        self.weight = torch.empty(width, dtype=dtype, device=device)

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{self.name}.weight", tuple(self.weight.shape)

    def load(self, tensors: TensorReader) -> None:
        tensors.read(f"{self.name}.weight", self.weight)

    def take_weights(self, other: Self) -> None:
        self.weight.copy_(other.weight)  # in place: the attention layer keeps a reference

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes
