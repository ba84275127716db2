"""Several residual streams: what a part of a layer reads of them, and how its result is added to them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..kernels import KernelSet
from .linear import Linear, Mix
from .loading import Loadable
from .norm import RMSNorm


class StreamReader:
    """The mean of the normed streams, times gates that are computed from them."""

    def __init__(self, norm: RMSNorm, down: Linear, up: Linear, count: int, kernels: KernelSet) -> None:
        """norm: of `count` streams, each normed by itself. down, up: make the gates, before their sigmoid."""
        self._norm, self._down, self._up, self._count, self._kernels = norm, down, up, count, kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self._norm
        yield self._down
        yield self._up

    def __call__(self, streams: torch.Tensor, mix: Mix | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """streams: [T, C * H]. mix: of the T tokens. Returns the mean, [T, H], and the normed streams."""
        kernels = self._kernels
        normed = kernels.norm_streams(streams, self._norm.weight, self._count, self._norm.eps)
        compressed = kernels.scale_and_cap(self._down(normed, mix), 1 / self._count)
        gates = self._up(kernels.activate(compressed, "silu"), mix)
        return kernels.average_streams(gates, normed, self._count), normed


class GatedResidual:
    """The streams before and after a part of a layer."""

    def __init__(self, read: StreamReader, weigh: Linear, count: int, kernels: KernelSet) -> None:
        """weigh: makes the weight of each stream in the addition, before its sigmoid."""
        self.read = read
        self._weigh, self._scale, self._kernels = weigh, 1 / count, kernels

    def loadables(self) -> Iterator[Loadable]:
        yield from self.read.loadables()
        yield self._weigh

    def add(
        self, streams: torch.Tensor, added: torch.Tensor, normed: torch.Tensor, mix: Mix | None = None
    ) -> torch.Tensor:
        """streams: [N, C * H]; added: [N, H]; normed: of `read`. mix: of the same N tokens."""
        return self._kernels.add_to_streams(streams, added, self._weigh(normed, mix), self._scale)
