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
        channels = sum(parts.values())
        super().__init__(list(parts), channels * width, dtype, device)
        self._parts = parts
        self.by_token = self.values.view(width, channels)

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for name, channels in self._parts.items():
            yield name, (channels, 1, len(self.by_token))

    def load(self, tensors: TensorReader) -> None:
        width, channels = self.by_token.shape
        given = torch.empty(channels, 1, width, dtype=self._dtype, device=self.values.device)
        for name, part in zip(self._parts, torch.split(given, list(self._parts.values())), strict=True):
            tensors.read(name, part)
        self.by_token.copy_(given[:, 0].T)


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
        bias = None if self._bias is None else self._bias.values
        out = self._kernels.causal_convolution(projected, self._taps.by_token, bias, cache[0], step, "gated")
        return out if rows is None else out[rows]
