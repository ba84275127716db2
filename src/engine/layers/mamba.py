"""Mamba: a convolution, then a state per channel that each token changes, and a gate. arXiv:2312.00752."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...model.mixer_tensors import mamba_parts
from ...model.mixers import Mamba as MambaSpec
from ..kernels import KernelSet, PartNormWeights, SelectiveScanWeights
from .block_matrix import BlockMatrix
from .convolution import Taps
from .linear import Linear, Mix
from .loading import Loadable, TensorReader
from .mixer import LayerCache
from .step_input import StepInput
from .vector import Vector


class Rates(Vector):
    """The rates at which a state changes by itself, -exp(A_log), by its elements: [state_size * channels]."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        """shape: channels, perhaps by head, and elements of the state of each."""
        super().__init__(name, shape, dtype, device, is_exact=True)
        self.by_element = self.values.view(shape[-1], -1)

    def load(self, tensors: TensorReader) -> None:
        super().load(tensors)
        state_size, channels = self.by_element.shape
        self.by_element.copy_(-self.values.view(channels, state_size).T.exp())


class StepProjections:
    """The time steps, B and C are computed from all channels."""

    def __init__(
        self, x_proj: Linear, norm: Vector | None, dt_proj: Linear, kernels: KernelSet, spec: MambaSpec
    ) -> None:
        """x_proj: compressed time steps, B and C; norm: the weights of their norms, if they have some. dt_proj: the
        time steps of all channels."""
        self._x_proj, self._norm, self._dt_proj, self._kernels = x_proj, norm, dt_proj, kernels
        weight = None if norm is None else norm.values
        self._parts = PartNormWeights(mamba_parts(spec), spec.norm != "none", weight, spec.norm_eps)

    def loadables(self) -> Iterator[Loadable]:
        yield self._x_proj
        if self._norm is not None:
            yield self._norm
        yield self._dt_proj

    def __call__(self, mixed: torch.Tensor, mix: Mix | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        compressed, b, c = self._kernels.norm_parts(self._x_proj(mixed, mix), self._parts)
        return self._dt_proj(compressed, mix), b, c


class HeadProjections:
    """The time steps, B and C of each head's channels are computed from these channels (Zamba)."""

    def __init__(self, x_proj: BlockMatrix, dt_proj: BlockMatrix, kernels: KernelSet, spec: MambaSpec) -> None:
        """x_proj, dt_proj: of each head, as those of StepProjections."""
        self._x_proj, self._dt_proj, self._kernels = x_proj, dt_proj, kernels
        self._parts = PartNormWeights(mamba_parts(spec), has_norm=False)

    def loadables(self) -> Iterator[Loadable]:
        yield self._x_proj
        yield self._dt_proj

    def __call__(self, mixed: torch.Tensor, mix: Mix | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """mix: unused, since adapters are of linear layers."""
        tokens, (heads, size, width) = len(mixed), self._x_proj.values.shape
        parts = self._kernels.expand_values(mixed.view(tokens, heads, size), self._x_proj.values)
        compressed, b, c = self._kernels.norm_parts(parts.view(tokens * heads, width), self._parts)
        compressed = compressed.reshape(tokens, heads, self._parts.sizes[0])
        b, c = (each.reshape(tokens, heads * self._parts.sizes[1]) for each in (b, c))
        return self._kernels.expand_values(compressed, self._dt_proj.values), b, c


class Mamba:
    def __init__(
        self,
        in_proj: Linear,
        out_proj: Linear,
        taps: Taps,
        conv_bias: Vector | None,
        projections: StepProjections | HeadProjections,
        vectors: tuple[Rates, Vector, Vector],
        kernels: KernelSet,
    ) -> None:
        """in_proj: inputs and gates. vectors: the rates, the bias of the time steps, and D."""
        self.in_proj = in_proj
        self.out_proj = out_proj
        self._taps, self._conv_bias = taps, conv_bias
        self._projections, self._vectors = projections, vectors
        rates, dt_bias, skip = vectors
        self._weights = SelectiveScanWeights(rates.by_element, dt_bias.values, skip.values)
        self._kernels = kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self.in_proj
        yield self._taps
        if self._conv_bias is not None:
            yield self._conv_bias
        yield from self._projections.loadables()
        yield from self._vectors
        yield self.out_proj

    def __call__(
        self, projected: torch.Tensor, step: StepInput, cache: LayerCache, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """See Mixer."""
        out = self._scan(projected, step, cache)
        return out if rows is None else out[rows]

    def advance(self, inputs: torch.Tensor, step: StepInput, cache: LayerCache) -> None:
        """See Recurrent."""
        self._scan(inputs, step, cache)

    def _scan(self, projected: torch.Tensor, step: StepInput, cache: LayerCache) -> torch.Tensor:
        inputs, sums = cache
        bias = None if self._conv_bias is None else self._conv_bias.values
        mixed = self._kernels.causal_convolution(projected, self._taps.by_token, bias, inputs, step, "silu")
        steps, b, c = self._projections(mixed, step.mix)
        return self._kernels.selective_scan(mixed, projected, steps, b, c, self._weights, sums, step)


def order_of_channels(width: int) -> torch.Tensor:
    """The outputs of `in_proj` where the checkpoint has the input and the gate of a channel side by side."""
    return torch.arange(2 * width).view(width, 2).T.flatten()
