"""Kimi Delta Attention: a convolution, then a state per head whose rows decay one by one. arXiv:2510.26692."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...model.mixers import KimiDelta as KimiDeltaSpec
from ..kernels import KernelSet, KimiDeltaWeights
from .convolution import Taps
from .linear import Linear
from .loading import Loadable
from .mixer import LayerCache
from .norm import RMSNorm
from .step_input import StepInput
from .vector import Vector


class KimiDelta:
    def __init__(
        self,
        spec: KimiDeltaSpec,
        in_proj: Linear,
        out_proj: Linear,
        decay_proj: Linear | None,
        gate_proj: Linear | None,
        taps: Taps,
        a_log: Vector,
        dt_bias: Vector,
        norm: RMSNorm,
        kernels: KernelSet,
    ) -> None:
        """A layer of the model.

        Args:
            in_proj: queries, keys and values of all heads, the decays of all their elements or the inputs of
                `decay_proj`, the gates or the inputs of `gate_proj`, and the rate of change of each head.
            decay_proj, gate_proj: of decays and gates that are compressed; else None.
        """
        self.in_proj = in_proj
        self.out_proj = out_proj
        self._decay_proj, self._gate_proj = decay_proj, gate_proj
        self._taps, self._a_log, self._dt_bias, self._norm = taps, a_log, dt_bias, norm
        self._rank = spec.rank or spec.num_heads * spec.head_dim
        self._weights = KimiDeltaWeights(a_log.values, dt_bias.values, norm.weight, norm.eps, spec.least_log)
        self._kernels = kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self.in_proj
        yield from (part for part in (self._decay_proj, self._gate_proj) if part is not None)
        yield self._taps
        yield self._a_log
        yield self._dt_bias
        yield self._norm
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
        mixed = self._kernels.causal_convolution(projected, self._taps.by_token, None, inputs, step, "silu")
        first = mixed.shape[1]
        decays = self._kernels.take_columns(projected, first, self._rank)
        gates = self._kernels.take_columns(projected, first + self._rank, self._rank)
        if self._decay_proj is not None:
            decays = self._decay_proj(decays, step.mix)
        if self._gate_proj is not None:
            gates = self._gate_proj(gates, step.mix)
        return self._kernels.kimi_delta(mixed, projected, decays, gates, self._weights, sums, step)
