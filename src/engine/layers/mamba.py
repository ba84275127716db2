"""Mamba: a convolution, then a state per channel that each token changes, and a gate. arXiv:2312.00752."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...model.mixers import Mamba as MambaSpec
from ...model.tensors import mamba_parts
from ..kernels import KernelSet, PartNormWeights, SelectiveScanWeights
from .convolution import Taps
from .linear import Linear
from .loading import Loadable, TensorReader
from .mixer import LayerCache
from .step_input import StepInput
from .vector import Vector


class Rates(Vector):
    """The rates at which a state changes by itself, -exp(A_log), by its elements: [state_size * channels]."""

    def __init__(self, name: str, channels: int, state_size: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(name, (channels, state_size), dtype, device, is_exact=True)
        self.by_element = self.values.view(state_size, channels)

    def load(self, tensors: TensorReader) -> None:
        super().load(tensors)
        state_size, channels = self.by_element.shape
        self.by_element.copy_(-self.values.view(channels, state_size).T.exp())


class Mamba:
    def __init__(
        self,
        in_proj: Linear,
        out_proj: Linear,
        taps: Taps,
        conv_bias: Vector | None,
        x_proj: Linear,
        norm: Vector | None,
        dt_proj: Linear,
        vectors: tuple[Rates, Vector, Vector],
        kernels: KernelSet,
        spec: MambaSpec,
    ) -> None:
        """in_proj: inputs and gates. x_proj: compressed time steps, B and C; norm: the weights of their norms, if they
        have some. dt_proj: the time steps of all channels. vectors: the rates, the bias of the time steps, and D."""
        self.in_proj = in_proj
        self.out_proj = out_proj
        self._taps, self._conv_bias = taps, conv_bias
        self._x_proj, self._norm, self._dt_proj, self._vectors = x_proj, norm, dt_proj, vectors
        rates, dt_bias, skip = vectors
        self._weights = SelectiveScanWeights(rates.by_element, dt_bias.values, skip.values)
        weight = None if norm is None else norm.values
        self._parts = PartNormWeights(mamba_parts(spec), spec.norm != "none", weight, spec.norm_eps)
        self._kernels = kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self.in_proj
        yield self._taps
        if self._conv_bias is not None:
            yield self._conv_bias
        yield self._x_proj
        if self._norm is not None:
            yield self._norm
        yield self._dt_proj
        yield from self._vectors
        yield self.out_proj

    def __call__(
        self, projected: torch.Tensor, step: StepInput, cache: LayerCache, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """See Mixer."""
        inputs, sums = cache
        bias = None if self._conv_bias is None else self._conv_bias.values
        mixed = self._kernels.causal_convolution(projected, self._taps.by_token, bias, inputs, step, "silu")
        compressed, b, c = self._kernels.norm_parts(self._x_proj(mixed, step.mix), self._parts)
        steps = self._dt_proj(compressed, step.mix)
        out = self._kernels.selective_scan(mixed, projected, steps, b, c, self._weights, sums, step)
        return out if rows is None else out[rows]
