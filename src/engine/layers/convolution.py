"""Causal convolution over the last tokens: its weights, and the short convolution of LFM2 as a mixer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from ..kernels import KernelSet
from .linear import Linear
from .loading import Loadable, TensorReader
from .mixer import LayerCache
from .step_input import StepInput
from .vector import Vector


class Taps(Vector):
    """The weight of a convolution of each channel by itself, by token: [width * channels], the oldest token first."""

    def __init__(self, parts: Mapping[str, int], width: int, dtype: torch.dtype, device: torch.device) -> None:
        """parts: name in the checkpoint -> channels, one after the other."""
        super().__init__(list(parts), [(channels, 1, width) for channels in parts.values()], dtype, device)
        self.by_token = self.values.view(width, sum(parts.values()))

    def load(self, tensors: TensorReader) -> None:
        super().load(tensors)
        width, channels = self.by_token.shape
        self.by_token.copy_(self.values.view(channels, width).T.clone())


class ShortConvolution:
    """Two gates around a convolution: arXiv:2511.23404, section 2.1."""

    def __init__(self, in_proj: Linear, out_proj: Linear, taps: Taps, bias: Vector | None, kernels: KernelSet) -> None:
        """in_proj: the gate of the inputs, the gate of the results, and the inputs."""
        self.in_proj = in_proj
        self.out_proj = out_proj
        self._taps, self._bias = taps, bias
        self._kernels = kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self.in_proj
        yield self._taps
        if self._bias is not None:
            yield self._bias
        yield self.out_proj

    def __call__(
        self, projected: torch.Tensor, step: StepInput, cache: LayerCache, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """See Mixer."""
        out = self._convolve(projected, step, cache)
        return out if rows is None else out[rows]

    def advance(self, inputs: torch.Tensor, step: StepInput, cache: LayerCache) -> None:
        """See Recurrent."""
        self._convolve(inputs, step, cache)

    def _convolve(self, projected: torch.Tensor, step: StepInput, cache: LayerCache) -> torch.Tensor:
        bias = None if self._bias is None else self._bias.values
        return self._kernels.causal_convolution(projected, self._taps.by_token, bias, cache[0], step, "gated")
