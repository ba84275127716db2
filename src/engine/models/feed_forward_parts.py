"""FeedForwardParts: makes the feed-forward blocks of a model: dense ones, and experts with their router."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...model.activations import HIDDEN_ACTS
from ...model.expert_placement import first_layout, own_experts
from ...model.experts import CLAMPED_SWIGLU, SWIGLU_LIMIT
from ...model.feed_forwards import MLP as MLPSpec
from ...model.feed_forwards import Experts as ExpertsSpec
from ...model.tensors import FUSED, NORMS_BESIDE
from ..kernels import ExpertGate, Routing
from ..layers.expert_lists import ExpertLists, ListedExperts
from ..layers.expert_places import ExpertPlaces
from ..layers.expert_weights import ExpertNames, Experts, ExpertSizes
from ..layers.experts import ExpertsBesideMLP, MixtureOfExperts, Router
from ..layers.linear import Linear
from ..layers.mlp import MLP, GatedMLP
from ..layers.vector import Vector
from .decoder_layers import FeedForward
from .parts import Parts


def _expert_gate(spec: ExpertsSpec) -> ExpertGate:
    if spec.activation == CLAMPED_SWIGLU:
        return ExpertGate("clamped_swiglu", limit=SWIGLU_LIMIT)
    if spec.gate_limit is not None:
        return ExpertGate("clamped_swiglu", alpha=1.0, limit=spec.gate_limit, offset=0.0)
    return ExpertGate(HIDDEN_ACTS[spec.activation], spec.is_gated)


class FeedForwardParts(Parts):
    """Makes feed-forward blocks from their descriptions in the ModelSpec."""

    def feed_forward(self, prefix: str, spec: MLPSpec | ExpertsSpec) -> FeedForward:
        return self.mlp(prefix, spec) if isinstance(spec, MLPSpec) else self.experts(prefix, spec)

    def listed_or_chosen(self, prefix: str, spec: MLPSpec | ExpertsSpec) -> FeedForward | ListedExperts:
        """The same for layers whose experts a table may list."""
        if isinstance(spec, MLPSpec) or not spec.listed_tokens:
            return self.feed_forward(prefix, spec)
        routing, experts = self.routing(spec), self.experts(prefix, spec)
        assert isinstance(experts, MixtureOfExperts)
        lists = ExpertLists(f"{prefix}.gate.tid2eid", spec.listed_tokens, routing, self._device)
        return ListedExperts(experts, lists, routing, self._kernels)

    def mlp(self, prefix: str, spec: MLPSpec, *, is_summed: bool = True) -> GatedMLP | MLP:
        hidden, activation = self._spec.hidden_size, HIDDEN_ACTS[spec.activation]
        finish = self._sum if is_summed else None
        has_down_bias = spec.has_bias or spec.has_down_bias
        down = self.linear(prefix, {"down_proj": hidden}, spec.width, has_down_bias, finish=finish)
        if not spec.is_gated:
            up = self.linear(prefix, {"up_proj": spec.width}, hidden, spec.has_bias)
            return MLP(up, down, self._kernels, activation)
        gate_up = self.linear(prefix, dict.fromkeys(FUSED["gate_up_proj"], spec.width), hidden, spec.has_bias)
        return GatedMLP(gate_up, down, self._kernels, activation, spec.gate_limit)

    def experts(self, prefix: str, spec: ExpertsSpec) -> MixtureOfExperts | ExpertsBesideMLP:
        hidden = self._spec.hidden_size
        gate, up, down = (f"{prefix}.experts.{{}}.{name}_proj" for name in ("gate", "up", "down"))
        scales = f"{prefix}.expert_scales" if spec.has_scales else None
        names = ExpertNames(gate if spec.is_gated else None, up, down, has_bias=spec.has_bias, scales=scales)
        own: range | ExpertPlaces | None = None
        if (sharing := self._replicas or self._ranks) is not None and spec.placement != "divided":
            size, rank = sharing.size, sharing.rank
            own = own_experts(spec, size, rank)
            if spec.redundant is not None:
                own = ExpertPlaces(first_layout(spec, size), rank, spec.count, self._device)
        sizes = ExpertSizes(spec.count, hidden, spec.width, own, spec.per_token)
        scheme = self._scheme and self._scheme.layers
        experts = Experts(names, sizes, _expert_gate(spec), self._kernels, self._dtype, self._device, scheme)
        shared: GatedMLP | MLP | None = None
        if spec.shared_width:
            block = MLPSpec(
                width=spec.shared_width,
                activation=spec.activation,
                is_gated=spec.is_gated,
                gate_limit=spec.shared_gate_limit,
            )
            shared = self.mlp(f"{prefix}.shared_experts", block, is_summed=False)  # together with the experts
        shared_gate: Linear | None = None
        if spec.has_shared_gate:  # not quantised, as the router
            part = {f"{prefix}.shared_expert_gate": 1}
            shared_gate = Linear(part, hidden, False, self._kernels, self._dtype, self._device)
        router = self.router(f"{prefix}.gate", spec)
        mixture = MixtureOfExperts(router, experts, self._kernels, shared, shared_gate, self._sum, self._replicas)
        if spec.beside is None:
            return mixture
        layer = prefix.removesuffix(".mlp")
        norms = [self.norm(f"{layer}.{name}", hidden) for name in NORMS_BESIDE]
        return ExpertsBesideMLP(self.mlp(prefix, spec.beside), mixture, norms, self._kernels)

    def router(self, name: str, spec: ExpertsSpec) -> Router:
        """Router of experts, whose weights are not quantised: they are few, and decide what is computed."""
        routing, dtype = spec.routing, torch.float32 if spec.routing.is_float32 else self._dtype
        hidden = self._spec.hidden_size
        projection = Linear({name: spec.count}, hidden, spec.has_router_bias, self._kernels, dtype, self._device)
        correction: Vector | None = None
        if routing.has_correction:
            correction = Vector(f"{name}.e_score_correction_bias", spec.count, torch.float32, self._device)
        chosen = self.routing(spec)
        if not spec.scales_input:
            norm = self.norm(f"{name}.norm", hidden) if spec.has_router_norm else None
            return Router(projection, chosen, self._kernels, correction, norm=norm)
        weightless = replace(chosen, scoring="softmax_of_chosen")  # of one expert: the weight of its output is 1
        return Router(projection, weightless, self._kernels, correction, chosen)

    def routing(self, spec: ExpertsSpec) -> Routing:
        routing = spec.routing
        return Routing(
            num_experts=spec.count,
            per_token=spec.per_token,
            scoring=routing.scoring,
            renormalises=routing.is_renormalised,
            scale=routing.scale,
            num_groups=routing.num_groups,
            groups_per_token=routing.groups_per_token,
            group_score="sum_of_two" if routing.scoring == "sigmoid" else "maximum",
            tolerance=routing.tolerance,
        )
