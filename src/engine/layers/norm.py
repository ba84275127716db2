"""RMSNorm, with the residual addition before it in the same pass."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..kernels import KernelSet
from .loading import TensorReader


class RMSNorm:
    """Zhang and Sennrich, arXiv:1910.07467."""

    def __init__(
        self, name: str, width: int, eps: float, kernels: KernelSet, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.name = name
        self.eps = eps
        self.weight = torch.empty(width, dtype=dtype, device=device)
        self._kernels = kernels

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{self.name}.weight", tuple(self.weight.shape)

    def load(self, tensors: TensorReader) -> None:
        tensors.read(f"{self.name}.weight", self.weight)

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [T, width]; residual: [T, width], None before the first layer. Returns norm(x + residual) and the sum."""
        return self._kernels.add_rms_norm(x, residual, self.weight, self.eps)
