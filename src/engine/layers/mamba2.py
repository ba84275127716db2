"""Mamba-2: a convolution, then a state per head that each token changes; gated and normed. arXiv:2405.21060."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...model.mixers import Mamba2 as Mamba2Spec
from ..kernels import KernelSet, RMSNormGatedWeights, StateSpaceWeights
from .convolution import Taps
from .linear import Linear
from .loading import Loadable
from .mixer import LayerCache
from .step_input import StepInput
from .vector import Vector


class Mamba2:
    def __init__(
        self,
        in_proj: Linear,
        out_proj: Linear,
        taps: Taps,
        conv_bias: Vector | None,
        vectors: tuple[Vector, Vector, Vector],
        norm: Vector | None,
        kernels: KernelSet,
        spec: Mamba2Spec,
        eps: float,
    ) -> None:
        """in_proj: inputs, B and C, the gates, the time steps. vectors: A_log, dt_bias and D. eps: of the norm."""
        self.in_proj = in_proj
        self.out_proj = out_proj
        self._taps, self._conv_bias, self._vectors, self._norm = taps, conv_bias, vectors, norm
        a_log, dt_bias, skip = (vector.values for vector in vectors)
        limits = {} if spec.max_step is None else {"max_step": spec.max_step}
        self._weights = StateSpaceWeights(a_log, dt_bias, skip, spec.min_step, **limits)
        self._gate = RMSNormGatedWeights(spec.norm, None if norm is None else norm.values, eps, spec.num_groups)
        self._kernels = kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self.in_proj
        yield self._taps
        if self._conv_bias is not None:
            yield self._conv_bias
        yield from self._vectors
        if self._norm is not None:
            yield self._norm
        yield self.out_proj

    def __call__(
        self, projected: torch.Tensor, step: StepInput, cache: LayerCache, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """See Mixer."""
        out = self._scan(projected, step, cache)
        if rows is not None:
            out, projected = out[rows], projected[rows]
        return self._kernels.rms_norm_gated(out, projected, self._taps.by_token.shape[1], self._gate)

    def advance(self, inputs: torch.Tensor, step: StepInput, cache: LayerCache) -> None:
        """See Recurrent."""
        self._scan(inputs, step, cache)

    def _scan(self, projected: torch.Tensor, step: StepInput, cache: LayerCache) -> torch.Tensor:
        inputs, sums = cache
        bias = None if self._conv_bias is None else self._conv_bias.values
        mixed = self._kernels.causal_convolution(projected, self._taps.by_token, bias, inputs, step, "silu")
        return self._kernels.state_space(mixed, projected, self._weights, sums, step)


def gates_after_inputs(spec: Mamba2Spec) -> torch.Tensor:
    """The outputs of `in_proj` in the order of the checkpoint, which has the gates first."""
    sizes = [spec.width, spec.conv_channels, spec.num_heads]
    gates, inputs, steps = torch.split(torch.arange(sum(sizes)), sizes)
    return torch.cat((inputs, gates, steps))
