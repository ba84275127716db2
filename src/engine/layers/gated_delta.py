"""Gated delta network: a convolution, then a state per value head that each token changes. arXiv:2412.06464."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...model.mixers import GatedDelta as GatedDeltaSpec
from ..kernels import GatedDeltaWeights, KernelSet
from .convolution import Taps
from .linear import Linear
from .loading import Loadable
from .mixer import LayerCache
from .norm import RMSNorm
from .step_input import StepInput
from .vector import Vector


class GatedDelta:
    def __init__(
        self,
        in_proj: Linear,
        out_proj: Linear,
        taps: Taps,
        a_log: Vector,
        dt_bias: Vector,
        norm: RMSNorm,
        spec: GatedDeltaSpec,
        kernels: KernelSet,
    ) -> None:
        """in_proj: queries, keys and values of all heads, the gates z, then b and a."""
        self.in_proj = in_proj
        self.out_proj = out_proj
        self._taps, self._a_log, self._dt_bias, self._norm = taps, a_log, dt_bias, norm
        self._weights = GatedDeltaWeights(
            a_log.values, dt_bias.values, norm.weight, norm.eps, spec.beta_scale, spec.gate
        )
        self._kernels = kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self.in_proj
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
        return self._kernels.gated_delta(mixed, projected, self._weights, sums, step)


def order_by_part(spec: GatedDeltaSpec) -> torch.Tensor | None:
    """The outputs of `in_proj` in the order of the checkpoint, where this stores them by key head; else None.

    Of each key head: its query, its key, and of its value heads the values and gates; then b and a of its value heads.
    """
    if spec.form != "by_key_head":
        return None
    share = spec.num_value_heads // spec.num_key_heads
    values = share * spec.value_dim

    def parts(first: int, sizes: list[int]) -> list[torch.Tensor]:
        rows = torch.arange(first, first + spec.num_key_heads * sum(sizes)).view(spec.num_key_heads, -1)
        return [part.flatten() for part in torch.split(rows, sizes, dim=1)]

    of_heads = parts(0, [spec.key_dim, spec.key_dim, values, values])
    return torch.cat([*of_heads, *parts(sum(map(len, of_heads)), [share, share])])
