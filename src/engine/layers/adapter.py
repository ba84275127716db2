"""Adapter: what a layer adds to the products of weights that it shares with other layers, of a low rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..kernels import KernelSet
from .linear import Linear, Mix
from .loading import Loadable


class Adapter:
    """out + up(down(x)), for each of the parts of a fused product: Hu et al., arXiv:2106.09685, without a scale."""

    def __init__(self, down: Linear, ups: Sequence[Linear], kernels: KernelSet) -> None:
        """down: the compressed inputs of all parts. ups: of each part, in their order."""
        self._down, self._ups, self._kernels = down, ups, kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self._down
        yield from self._ups

    def __call__(self, x: torch.Tensor, out: torch.Tensor, mix: Mix | None = None) -> torch.Tensor:
        """x: [T, inputs]. out: [T, outputs of all parts], the product of the shared weights. mix: of the T tokens."""
        compressed, rank, kernels = self._down(x, mix), self._ups[0].in_features, self._kernels
        if len(self._ups) == 1:
            return kernels.add_scaled(self._ups[0](compressed, mix), out)
        parts = [up(kernels.take_columns(compressed, part * rank, rank), mix) for part, up in enumerate(self._ups)]
        return kernels.add_scaled(kernels.join_columns(parts), out)
