"""Mixture of experts: a router chooses a few feed-forward blocks for each token, and their outputs are added, weighted.

Shazeer et al., arXiv:1701.06538. Checkpoints that have one tensor for all experts are read as tensors of each
(config/checkpoint/match.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from ...model.expert_placement import Layout
from ...model.quantised import EXPERT_STEP
from ..collectives import SharedExperts
from ..kernels import ExpertGate, ExpertWeights, Grouped, GroupedExpert, KernelSet, PackedExpert, PackedExperts, Routing
from ..kernels.exchange import Choice
from .expert_places import ExpertPlaces
from .linear import Finish, Linear, Mix
from .loading import Held, Loadable, TensorReader
from .mlp import MLP, GatedMLP
from .norm import Norm
from .vector import Vector

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    count: int
    hidden: int
    inner: int  # of the gates and of the ups
    own: range | ExpertPlaces | None = None  # those that this process has, which may change; None for all
    per_token: int = 1

    @property
    def held(self) -> Sequence[int]:
        if isinstance(self.own, ExpertPlaces):
            return self.own.own
        return range(self.count) if self.own is None else self.own


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """The tensors of each expert, without `.weight`; {} is the expert's index. gate: None without gates."""

    gate: str | None
    up: str
    down: str
    has_bias: bool = False
    scales: str | None = None  # one number per expert, which multiplies its output

    @property
    def _gate_up(self) -> tuple[str, ...]:
        return (self.up,) if self.gate is None else (self.gate, self.up)

    def wanted(self, sizes: ExpertSizes) -> Iterator[tuple[str, Shape]]:
        rows = {**dict.fromkeys(self._gate_up, sizes.inner), self.down: sizes.hidden}
        if self.scales is not None:
            yield self.scales, (sizes.count,)
        for expert in sizes.held:
            for name, outputs in rows.items():
                inputs = sizes.inner if name == self.down else sizes.hidden
                yield f"{name.format(expert)}.weight", (outputs, inputs)
                if self.has_bias:
                    yield f"{name.format(expert)}.bias", (outputs,)

    def experts(
        self, tensors: TensorReader, sizes: ExpertSizes, dtype: torch.dtype, device: torch.device, *, keeps_codes: bool
    ) -> Iterator[ExpertWeights | GroupedExpert]:
        """keeps_codes: those of a quantised checkpoint are not computed to numbers, where the kernels take them."""

        def stacked(expert: int, kind: str, names: tuple[str, ...], *shape: int) -> torch.Tensor:
            whole = torch.empty(len(names) * shape[0], *shape[1:], dtype=dtype, device=device)
            for name, part in zip(names, whole.chunk(len(names)), strict=True):
                tensors.read(f"{name.format(expert)}.{kind}", part)
            return whole

        gate_up, down = self._gate_up, (self.down,)
        scales = torch.ones(sizes.count, dtype=dtype, device=device)
        if self.scales is not None:
            tensors.read(self.scales, scales)
        for expert in sizes.held:
            gate_up_bias = stacked(expert, "bias", gate_up, sizes.inner) if self.has_bias else None
            down_bias = stacked(expert, "bias", down, sizes.hidden) if self.has_bias else None
            codes = self._codes(expert, tensors, dtype) if keeps_codes else None
            if codes is not None:
                scaled = codes.down if self.scales is None else codes.down.times(float(scales[expert]))
                yield replace(codes, down=scaled, gate_up_bias=gate_up_bias, down_bias=down_bias)
                continue
            yield ExpertWeights(
                stacked(expert, "weight", gate_up, sizes.inner, sizes.hidden),
                stacked(expert, "weight", down, sizes.hidden, sizes.inner) * scales[expert],
                gate_up_bias,
                down_bias,
            )

    def _codes(self, expert: int, tensors: TensorReader, dtype: torch.dtype) -> GroupedExpert | None:
        found: list[Grouped] = []
        for name in (*self._gate_up, self.down):
            part = tensors.grouped(f"{name.format(expert)}.weight", dtype)
            if part is None:
                return None
            found.append(part)
        codes = GroupedExpert(tuple(found[:-1]), found[-1])
        return codes if codes.can_be_packed else None


class Experts:
    """The weights of the experts of a layer that this process has."""

    def __init__(
        self,
        names: ExpertNames,
        sizes: ExpertSizes,
        gate: ExpertGate,
        kernels: KernelSet,
        dtype: torch.dtype,
        device: torch.device,
        scheme: str | None = None,
    ) -> None:
        """scheme: quantises the weights."""
        self.sizes = sizes
        self._names, self._gate, self._kernels = names, gate, kernels
        self._dtype, self._device, self._scheme = dtype, device, scheme
        self._packed: PackedExperts | None = None

    def wanted(self) -> Iterator[tuple[str, Shape]]:
        return self._names.wanted(self.sizes)

    def load(self, tensors: TensorReader) -> None:
        """Load and pack the experts. Only the weights of this layer exist twice meanwhile."""
        keeps_codes = self._scheme is None and self._kernels.packs_grouped_experts
        experts = self._names.experts(tensors, self.sizes, self._dtype, self._device, keeps_codes=keeps_codes)
        self._packed = self._kernels.pack_experts(experts, len(self.sizes.held), self._gate, self._scheme)

    def take_weights(self, other: Self) -> None:
        self._packed, other._packed = self._kernels.repack_experts(other.packed), None

    def own_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """ids: [T, k] int32, of experts. Returns them as indices of this process's experts, -1 for others."""
        match self.sizes.own:
            case None:
                return ids
            case ExpertPlaces(copies=copies):
                return self._kernels.own_places(ids, copies)
            case own:
                return self._kernels.own_experts(ids, own)

    def among(
        self,
        replicas: SharedExperts,
        own: Choice,
        shared: torch.Tensor | None = None,
        shared_gate: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Computes these experts for the tokens of all replicas, as they do.

        own: the tokens of this one. Returns their outputs, [T, hidden], from all experts.
        """
        x, ids, weights = replicas.gather(own)
        part = self._kernels.experts(x, self.own_ids(ids), weights, self.packed, None, None)
        return replicas.sum(part, len(own[0]), shared, shared_gate)

    def assist(self, replicas: SharedExperts) -> None:
        """Take part in `among` without tokens of this replica."""
        x = torch.empty(0, self.sizes.hidden, dtype=self._dtype)
        ids = torch.empty(0, self.sizes.per_token, dtype=torch.int32)
        self.among(replicas, (x, ids, torch.empty(0, self.sizes.per_token, dtype=torch.float32)))

    @property
    def places(self) -> ExpertPlaces | None:
        """Places of experts that can move; None if they stay."""
        return self.sizes.own if isinstance(self.sizes.own, ExpertPlaces) else None

    def move(self, layout: Layout, arrived: Mapping[int, PackedExpert]) -> None:
        """Move experts from the next step on. Captured steps read the same tables.

        arrived: experts that this process did not have, by their places in it.
        """
        assert self.places is not None, "these experts stay"
        before = self.packed
        experts = (arrived.get(place, expert) for place, expert in enumerate(before.experts))
        after = self._kernels.place_experts(replace(before, experts=tuple(experts)))
        for old, new in ((before.gate_ups, after.gate_ups), (before.downs, after.downs)):
            if old is not None and new is not None:
                old.copy_(new)
        self._packed = replace(after, gate_ups=before.gate_ups, downs=before.downs)
        self.places.use(layout)

    def held(self) -> Held:
        return {"packed": self.packed}

    def hold(self, held: Held) -> None:
        packed = held.get("packed")
        if not isinstance(packed, PackedExperts) or len(packed.experts) != len(self.sizes.held):
            raise ValueError(f"`packed` must be {len(self.sizes.held)} experts")
        for expert in packed.experts:
            self._check(expert)
        self._packed = self._kernels.place_experts(replace(packed, gate=self._gate))

    def _check(self, expert: PackedExpert) -> None:
        """Kernels take the sizes of all experts from the first."""
        gate_up, down = expert.gate_up, expert.down
        inner = self.sizes.inner + (-self.sizes.inner % EXPERT_STEP if down.is_packed else 0)
        rows = inner * (2 if self._gate.has_gates else 1)
        if (gate_up.out_features, gate_up.in_features) != (rows, self.sizes.hidden) or (
            (down.out_features, down.in_features) != (self.sizes.hidden, inner)
        ):
            raise ValueError(f"an expert has {gate_up.out_features} gates and ups of width {down.in_features}")
        if not gate_up.dtype == down.dtype == self._dtype or gate_up.is_packed != down.is_packed:
            raise ValueError("an expert is packed in two ways")

    @property
    def num_bytes(self) -> int:
        if self._scheme is not None:
            return self.packed.num_bytes
        unpadded = sum(math.prod(shape) for _, shape in self.wanted()) * self._dtype.itemsize
        return min(unpadded, self.packed.num_bytes)  # as Linear.num_bytes

    @property
    def packed(self) -> PackedExperts:
        assert self._packed is not None, "experts used before they were loaded"
        return self._packed


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
        is_wide = self.projection.packed.dtype == torch.float32
        normed = x if self.norm is None else self.norm(self._kernels, x)[0]
        logits = self.projection(self._kernels.to_float32(normed) if is_wide else normed, mix)
        bias = None if self.choice_bias is None else self.choice_bias.values
        ids, weights = self._kernels.route_experts(logits, bias, self._routing)
        if self._input_routing is not None:
            _, factors = self._kernels.route_experts(logits, None, self._input_routing)
            x = self._kernels.scale_rows(x, factors)
        return x, ids, weights


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
        self, norm: Norm, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden, residual: [T, hidden]. mix: of the T tokens; it adds nothing to the products of single experts.

        Returns the block's output for norm(hidden + residual), and the sum.
        """
        normed, total = norm(self._kernels, hidden, residual)
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
        own = self.experts.own_ids(ids)
        out = self._kernels.experts(routed, own, weights, self.experts.packed, shared, shared_gate)
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
        self, norm: Norm, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See GatedMLP. norm: of the input of the MLP."""
        normed, total = norm(self._kernels, hidden, residual)
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
