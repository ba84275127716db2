"""The recurrent block of Griffin: a convolution, a real-gated linear recurrent unit, a gate. arXiv:2402.19427."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ...model.activations import HIDDEN_ACTS
from ...model.mixers import RgLru as RgLruSpec
from ..kernels import KernelSet, RgLruWeights
from .block_matrix import BlockMatrix
from .convolution import Taps
from .linear import Linear
from .loading import Loadable, TensorReader
from .mixer import LayerCache
from .step_input import StepInput
from .vector import Vector


class DecayRates(Vector):
    """The logarithms of the decays where their gates are open: -8 * softplus of what is stored."""

    def __init__(self, name: str, channels: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(name, channels, dtype, device, is_exact=True)

    def load(self, tensors: TensorReader) -> None:
        super().load(tensors)
        self.values.copy_(-8 * F.softplus(self.values))


class RgLru:
    def __init__(
        self,
        in_proj: Linear,
        out_proj: Linear,
        taps: Taps,
        conv_bias: Vector,
        gates: tuple[BlockMatrix, BlockMatrix],
        vectors: tuple[DecayRates, Vector, Vector],
        kernels: KernelSet,
        spec: RgLruSpec,
    ) -> None:
        """in_proj: inputs, and gates of the outputs. gates: the matrices of the gates of inputs and decays. vectors:
        the rates, and the biases of these gates."""
        self.in_proj = in_proj
        self.out_proj = out_proj
        self._taps, self._conv_bias, self._gates, self._vectors = taps, conv_bias, gates, vectors
        self._weights = RgLruWeights(*(vector.values for vector in vectors))
        self._heads, self._activation = (spec.num_heads, spec.head_dim), HIDDEN_ACTS[spec.activation]
        self._kernels = kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self.in_proj
        yield self._taps
        yield self._conv_bias
        yield from self._gates
        yield from self._vectors
        yield self.out_proj

    def __call__(
        self, projected: torch.Tensor, step: StepInput, cache: LayerCache, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """See Mixer."""
        out, width = self._scan(projected, step, cache), self._conv_bias.values.numel()
        if rows is not None:
            out, projected = out[rows], projected[rows]
        gates = self._kernels.take_columns(projected, width, width)
        return self._kernels.gate_inputs(gates, out, self._activation)

    def advance(self, inputs: torch.Tensor, step: StepInput, cache: LayerCache) -> None:
        """See Recurrent."""
        self._scan(inputs, step, cache)

    def _scan(self, projected: torch.Tensor, step: StepInput, cache: LayerCache) -> torch.Tensor:
        (inputs, sums), kernels = cache, self._kernels
        mixed = kernels.causal_convolution(
            projected, self._taps.by_token, self._conv_bias.values, inputs, step, "plain"
        )
        heads = mixed.view(len(mixed), *self._heads)
        input_gates, decay_gates = (kernels.expand_values(heads, gate.values) for gate in self._gates)
        return kernels.rg_lru(mixed, input_gates, decay_gates, self._weights, sums, step)
