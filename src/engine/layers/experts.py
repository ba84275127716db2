"""Mixture of experts: a router chooses a few feed-forward blocks for each token, and their outputs are added, weighted.

Shazeer et al., arXiv:1701.06538. expert_weights.py has the experts themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..collectives import SharedExperts
from ..kernels import KernelSet, Routing
from .expert_weights import Experts
from .linear import Finish, Linear, Mix
from .loading import Loadable
from .mlp import MLP, GatedMLP
from .norm import AnyNorm, Norm
from .vector import Vector


class Router:
    def __init__(
        self,
        projection: Linear,
        routing: Routing,
        kernels: KernelSet,
        choice_bias: Vector | None = None,
        input_routing: Routing | None = None,
        norm: Norm | None = None,
    ) -> None:
        """projection: of one output for each expert; x is converted to float32 if the projection is float32.
        choice_bias: is added to the scores for the choice, not for the weights (DeepSeek-V3, arXiv:2412.19437).
        input_routing: of one expert per token, whose weight multiplies its input (Llama 4).
        norm: of the input of the projection."""
        self.norm = norm
        self.projection = projection
        self.choice_bias = choice_bias
        self._input_routing = input_routing
        self._routing, self._kernels = routing, kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self.projection
        if self.norm is not None:
            yield self.norm
        if self.choice_bias is not None:
            yield self.choice_bias

    def __call__(self, x: torch.Tensor, mix: Mix | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x: [T, hidden]. mix: of the T tokens.

        Returns the input of the experts; each token's experts and their weights, both [T, per_token].
        """
        logits = self.logits(x, mix)
        bias = None if self.choice_bias is None else self.choice_bias.values
        ids, weights = self._kernels.route_experts(logits, bias, self._routing)
        if self._input_routing is not None:
            _, factors = self._kernels.route_experts(logits, None, self._input_routing)
            x = self._kernels.scale_rows(x, factors)
        return x, ids, weights

    def logits(self, x: torch.Tensor, mix: Mix | None = None) -> torch.Tensor:
        """x: [T, hidden]. Returns [T, experts]."""
        is_wide = self.projection.packed.dtype == torch.float32
        normed = x if self.norm is None else self.norm(self._kernels, x)[0]
        return self.projection(self._kernels.to_float32(normed) if is_wide else normed, mix)


class MixtureOfExperts:
    """Experts with a router, with the interface of GatedMLP."""

    def __init__(
        self,
        router: Router,
        experts: Experts,
        kernels: KernelSet,
        shared: GatedMLP | MLP | None = None,
        shared_gate: Linear | None = None,
        finish: Finish | None = None,
        replicas: SharedExperts | None = None,
    ) -> None:
        """experts: all, or only this process's: others compute the others, and `finish` adds. shared: the block that
        every token goes through; shared_gate: of one output, whose sigmoid multiplies it. finish: as of Linear.
        replicas: have the other experts, and their own tokens."""
        self.router = router
        self.experts = experts
        self.shared = shared
        self.shared_gate = shared_gate
        self._kernels, self._finish, self._replicas = kernels, finish, replicas

    def loadables(self) -> Iterator[Loadable]:
        yield from self.router.loadables()
        yield self.experts
        if self.shared is not None:
            yield from self.shared.loadables()
        if self.shared_gate is not None:
            yield self.shared_gate

    def __call__(
        self, norm: AnyNorm, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden, residual: [T, hidden]. mix: of the T tokens.

        Returns the block's output for norm(hidden + residual), and the sum.
        """
        normed, total = norm(self._kernels, hidden, residual, mix)
        return self.of(normed, mix), total

    def of(self, x: torch.Tensor, mix: Mix | None = None) -> torch.Tensor:
        """The block's output for x itself, [T, hidden]."""
        return self.of_routed(x, *self.router(x, mix), mix)

    def of_routed(
        self, x: torch.Tensor, routed: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, mix: Mix | None = None
    ) -> torch.Tensor:
        """Compute `of` with what the router returns: the experts' input, each token's experts and their weights."""
        shared = None if self.shared is None else self.shared.of(x, mix)
        shared_gate = None if self.shared_gate is None else self.shared_gate(x, mix)
        if self._replicas is not None:
            return self.experts.among(self._replicas, (routed, ids, weights), shared, shared_gate)
        out = self.experts((routed, ids, weights), shared, shared_gate, mix)
        return out if self._finish is None else self._finish(out)


class ExpertsBesideMLP:
    """An MLP and experts for each token, with their own norms; their outputs are added. Gemma 4.

    Has the interface of GatedMLP.
    """

    def __init__(
        self, mlp: GatedMLP | MLP, experts: MixtureOfExperts, norms: Sequence[Norm], kernels: KernelSet
    ) -> None:
        """norms: of the output of the MLP, of the input of the experts, of their output. The router has its own."""
        self.mlp = mlp
        self.experts = experts
        self.norms = norms
        self._kernels = kernels

    def loadables(self) -> Iterator[Loadable]:
        yield from self.mlp.loadables()
        yield from self.experts.loadables()
        yield from self.norms

    def __call__(
        self, norm: AnyNorm, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See GatedMLP. norm: of the input of the MLP."""
        normed, total = norm(self._kernels, hidden, residual, mix)
        return self._added(normed, total, mix), total

    def of(self, x: torch.Tensor, mix: Mix | None = None) -> torch.Tensor:
        """See GatedMLP.of."""
        return self._added(x, x, mix)

    def _added(self, normed: torch.Tensor, total: torch.Tensor, mix: Mix | None) -> torch.Tensor:
        of_mlp, of_input, of_experts = self.norms
        added, _ = of_mlp(self._kernels, self.mlp.of(normed, mix))
        _, ids, weights = self.experts.router(total, mix)
        x, _ = of_input(self._kernels, total)
        routed = self.experts.of_routed(x, x, ids, weights, mix)
        return self._kernels.add_scaled(of_experts(self._kernels, routed)[0], added)
