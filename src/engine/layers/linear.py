"""Linear layer: one or several projections of the same input, fused into one product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch

from ..kernels import KernelSet, PackedLinear
from .loading import TensorReader


class Linear:
    """x @ W.T + b, where W stacks the rows of its parts in order."""

    def __init__(
        self,
        parts: Mapping[str, int],
        in_features: int,
        has_bias: bool,
        kernels: KernelSet,
        dtype: torch.dtype,
        device: torch.device,
        scheme: str | None = None,
    ) -> None:
        """parts: name in the checkpoint (without `.weight`) -> out_features. scheme: the weight is quantised to it."""
        self.parts = parts
        self.in_features = in_features
        self.has_bias = has_bias
        self._kernels = kernels
        self._dtype, self._device = dtype, device
        self._scheme = scheme
        self._packed: PackedLinear | None = None

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for name, rows in self.parts.items():
            yield f"{name}.weight", (rows, self.in_features)
            if self.has_bias:
                yield f"{name}.bias", (rows,)

    def load(self, read: TensorReader) -> None:
        rows = sum(self.parts.values())
        weight = torch.empty(rows, self.in_features, dtype=self._dtype, device=self._device)
        bias = torch.empty(rows, dtype=self._dtype, device=self._device) if self.has_bias else None
        sizes = list(self.parts.values())
        for name, part in zip(self.parts, torch.split(weight, sizes), strict=True):
            read(f"{name}.weight", part)
        if bias is not None:
            for name, part in zip(self.parts, torch.split(bias, sizes), strict=True):
                read(f"{name}.bias", part)
        if self._scheme is None:
            self._packed = self._kernels.pack_linear(weight, bias)
        else:
            self._packed = self._kernels.quantise_linear(weight, bias, self._scheme)

    @property
    def num_bytes(self) -> int:
        if self._scheme is not None:
            return self.packed.num_bytes
        return sum(math.prod(shape) for _, shape in self.wanted()) * self._dtype.itemsize

    @property
    def packed(self) -> PackedLinear:
        assert self._packed is not None, f"{list(self.parts)} used before it was loaded"
        return self._packed

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [T, in_features]. Returns [T, sum of the parts]."""
        return self._kernels.linear(x, self.packed)
