"""Lightning attention: a state of outer products that decays at a fixed rate. arXiv:2501.08313.

It is the state space of Mamba-2 with time steps of 1: the values are its inputs, the keys its B, the queries its C.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...model.mixers import LightningAttention as LightningSpec
from ..kernels import KernelSet, RMSNormGatedWeights, StateSpaceWeights
from .linear import Linear
from .loading import Loadable
from .mixer import LayerCache
from .step_input import StepInput
from .vector import Vector


class LightningAttention:
    def __init__(
        self,
        in_proj: Linear,
        out_proj: Linear,
        norm: Vector,
        kernels: KernelSet,
        spec: LightningSpec,
        device: torch.device,
    ) -> None:
        """in_proj: values, keys and queries of all heads, the gates of the outputs, and a zero for each head."""
        self.in_proj = in_proj
        self.out_proj = out_proj
        self._norm = norm
        self._inputs = 3 * spec.width
        rates = slopes(spec.num_heads).to(device) * spec.slope_scale
        zeros = torch.zeros_like(rates)
        self._weights = StateSpaceWeights(rates.log(), zeros, zeros, min_step=1.0, max_step=1.0)
        self._gate = RMSNormGatedWeights("before_gate", norm.values, spec.norm_eps, groups=1, gate="sigmoid")
        self._kernels = kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self.in_proj
        yield self._norm
        yield self.out_proj

    def __call__(
        self, projected: torch.Tensor, step: StepInput, cache: LayerCache, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """See Mixer."""
        out = self._scan(projected, step, cache)
        if rows is not None:
            out, projected = out[rows], projected[rows]
        return self._kernels.rms_norm_gated(out, projected, self._inputs, self._gate)

    def advance(self, inputs: torch.Tensor, step: StepInput, cache: LayerCache) -> None:
        """See Recurrent."""
        self._scan(inputs, step, cache)

    def _scan(self, projected: torch.Tensor, step: StepInput, cache: LayerCache) -> torch.Tensor:
        _, sums = cache
        mixed = self._kernels.activate(self._kernels.take_columns(projected, 0, self._inputs), "silu")
        return self._kernels.state_space(mixed, projected, self._weights, sums, step)


def slopes(num_heads: int) -> torch.Tensor:
    """[num_heads] float32: the rates of decay of the first layer, as those of ALiBi with as many heads."""
    return 2.0 ** (-8 / num_heads * torch.arange(1, num_heads + 1, dtype=torch.float32))


def order_of_lightning(num_heads: int, head_dim: int) -> torch.Tensor:
    """The outputs of `in_proj` where the checkpoint has, by head, its query, key and value, and then the gates."""
    width = num_heads * head_dim
    queries, keys, values = torch.arange(3 * width).view(num_heads, 3, head_dim).unbind(1)
    gates, zeros = torch.arange(3 * width, 4 * width), torch.full((num_heads,), -1)
    return torch.cat((values.flatten(), keys.flatten(), queries.flatten(), gates, zeros))
