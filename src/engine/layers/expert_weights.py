"""The weights of a layer's experts that this process has: which tensors they are, how they are loaded, and moved.

    names = ExpertNames("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj", "mlp.experts.{}.down_proj")
    experts = Experts(names, ExpertSizes(count=64, hidden=2048, inner=1408), ExpertGate(), kernels, dtype, device)
    experts.load(tensors)

Checkpoints that have one tensor for all experts are read as tensors of each (config/checkpoint/match.py).
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
from ..kernels import ExpertGate, ExpertWeights, Grouped, GroupedExpert, KernelSet, PackedExpert, PackedExperts
from ..kernels.exchange import Choice
from .expert_places import ExpertPlaces
from .linear import Mix
from .loading import Held, TensorReader

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

    @property
    def of_products(self) -> tuple[tuple[str, ...], str]:
        return self._gate_up, self.down

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

    def __call__(
        self,
        routed: Choice,
        base: torch.Tensor | None = None,
        base_gate: torch.Tensor | None = None,
        mix: Mix | None = None,
    ) -> torch.Tensor:
        """The weighted sum of the outputs of this process's experts, and of the base: see experts_reference.

        routed: the inputs of T tokens, their experts and the weights of these. mix: of the T tokens.
        """
        x, ids, weights = routed
        own = self.own_ids(ids)
        if mix is not None and (adapted := mix.of_experts(self)) is not None:
            slots, layer = adapted
            return self._kernels.adapted_experts(x, own, weights, self.packed, base, base_gate, slots, layer)
        return self._kernels.experts(x, own, weights, self.packed, base, base_gate)

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
        part = self((x, ids, weights))
        return replicas.sum(part, len(own[0]), shared, shared_gate)

    def assist(self, replicas: SharedExperts) -> None:
        """Take part in `among` without tokens of this replica."""
        x = torch.empty(0, self.sizes.hidden, dtype=self._dtype)
        ids = torch.empty(0, self.sizes.per_token, dtype=torch.int32)
        self.among(replicas, (x, ids, torch.empty(0, self.sizes.per_token, dtype=torch.float32)))

    @property
    def has_gates(self) -> bool:
        return self._gate.has_gates

    def products(self, expert: int) -> tuple[tuple[str, ...], str]:
        """The weights of the two products of an expert, without `.weight`: gates and ups, or ups; downs."""
        gate_up, down = self._names.of_products
        return tuple(name.format(expert) for name in gate_up), down.format(expert)

    @property
    def has_scales(self) -> bool:
        """Whether numbers of the checkpoint multiply the outputs of experts."""
        return self._names.scales is not None

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
