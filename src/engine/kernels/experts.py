"""A layer of experts: each token goes through the feed-forward blocks that were chosen for it, and their outputs
are added, weighted. Sums are float32, in an order that depends only on the token's experts.

    packed = pack_experts_reference(experts, num_experts, ExpertGate(), None)
    out = experts_reference(x, ids, weights, packed)    # ids, weights: [tokens, experts of each]

panel_experts.py has the same operations for CPUs, gpu/experts.py for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from ...model.activations import Activation
from ...model.quantised import EXPERT_STEP
from .activation import ACTIVATIONS, activate_and_mul_reference, activate_reference
from .grouped import Grouped, are_alike
from .linear import (
    PackedLinear,
    PackLinear,
    QuantiseLinear,
    linear_reference,
    pack_linear_reference,
    quantise_linear_reference,
)

Gate = Activation | Literal["clamped_swiglu"]
GATES: tuple[Gate, ...] = (*ACTIVATIONS, "clamped_swiglu")  # in the order of cpu/experts.cpp


@dataclass(frozen=True, slots=True)
class ExpertGate:
    """How the gate changes the up projection of an expert.

    activation(gate) * up, or clamped_swiglu: g * sigmoid(alpha * g) * (u + offset), where g is the gate up to `limit`
    and u the up from -limit to limit; the defaults are gpt-oss's. Without gates: activation(up).
    """

    kind: Gate = "silu"
    has_gates: bool = True
    alpha: float = 1.702  # the defaults are those of gpt-oss
    limit: float = 7.0
    offset: float = 1.0


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Weights of one expert."""

    gate_up: torch.Tensor  # [2 * I, H], gates first; [I, H] without gates
    down: torch.Tensor  # [H, I]
    gate_up_bias: torch.Tensor | None = None  # [2 * I] or [I]
    down_bias: torch.Tensor | None = None  # [H]


@dataclass(frozen=True, slots=True)
class GroupedExpert:
    """Weights of one expert, as ExpertWeights, with the codes of a quantised checkpoint."""

    gate_up: tuple[Grouped, ...]  # gates and ups, or ups alone: [I, H] each, alike
    down: Grouped  # [H, I]
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None

    @property
    def can_be_packed(self) -> bool:
        """Whether cpu/experts.cpp can use the codes in its layout, in which codes are not padded."""
        return are_alike(self.gate_up) and self.down.shape[1] % EXPERT_STEP == 0


@dataclass(frozen=True, slots=True)
class PackedExpert:
    gate_up: PackedLinear
    down: PackedLinear

    @property
    def num_bytes(self) -> int:
        return self.gate_up.num_bytes + self.down.num_bytes


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """All experts of a layer in the layout of a kernel. Only the KernelSet that packed them can read them."""

    experts: tuple[PackedExpert, ...]
    gate: ExpertGate
    gate_ups: torch.Tensor | None = None  # None: torch computes them
    downs: torch.Tensor | None = None  # CPU: tables [E, 4] int64, see cpu/experts.cpp. GPU: all weights in one tensor

    @property
    def num_bytes(self) -> int:
        return sum(expert.num_bytes for expert in self.experts)


# The experts one after the other, so that only one of them exists twice; their number; the gate; the scheme that
# quantises them. Grouped ones only for kernels with `packs_grouped_experts`.
PackExperts = Callable[[Iterable[ExpertWeights | GroupedExpert], int, ExpertGate, str | None], PackedExperts]
PlaceExperts = Callable[[PackedExperts], PackedExperts]  # with the tables of where these tensors are
RepackExperts = Callable[[PackedExperts], PackedExperts]  # of the torch kernels, for the kernels of this set
# x, ids, weights, experts, base, gate of the base: see the reference.
Experts = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, PackedExperts, torch.Tensor | None, torch.Tensor | None], torch.Tensor
]


def expert_gate_reference(gate_up: torch.Tensor, gate: ExpertGate) -> torch.Tensor:
    """gate_up: [T, 2 * I], gates first, or [T, I]. Returns [T, I] in the same dtype; arithmetic in float32."""
    if not gate.has_gates:
        assert gate.kind != "clamped_swiglu"
        return activate_reference(gate_up, gate.kind)
    if gate.kind != "clamped_swiglu":
        return activate_and_mul_reference(gate_up, gate.kind)
    gates, ups = gate_up.float().chunk(2, dim=-1)
    gates = gates.clamp(max=gate.limit)
    gated = gates * torch.sigmoid(gate.alpha * gates) * (ups.clamp(-gate.limit, gate.limit) + gate.offset)
    return gated.to(gate_up.dtype)


def experts_reference(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    packed: PackedExperts,
    base: torch.Tensor | None = None,
    base_gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weighted sum of the outputs of each token's experts, and of an output that all tokens have.

    Args:
        x: [T, H].
        ids: [T, k] int32, the experts of each token, all different; below 0 if another process has the expert.
        weights: [T, k] float32.
        base: [T, H], the output of the shared experts, or None.
        base_gate: [T, 1], the sum includes base times its sigmoid; None: base itself.
    Returns:
        [T, H] in x's dtype.
    """
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device) if base is None else base.float()
    if base_gate is not None:
        total = total * torch.sigmoid(base_gate.float())
    for expert in sorted(set(ids[ids >= 0].tolist())):
        tokens, places = (ids == expert).nonzero(as_tuple=True)
        own = packed.experts[expert]
        gated = expert_gate_reference(linear_reference(x[tokens], own.gate_up), packed.gate)
        out = linear_reference(gated, own.down).float() * weights[tokens, places, None]
        total = total.index_add(0, tokens, out)
    return total.to(x.dtype)


def check_shapes(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, hidden: int) -> None:
    """Raises ValueError for tensors that kernels would read past their end."""
    if x.shape != (len(ids), hidden) or weights.shape != ids.shape:
        raise ValueError(f"x is {tuple(x.shape)}, ids are {tuple(ids.shape)}, weights {tuple(weights.shape)}")


def packing_expert(
    pack_linear: PackLinear, quantise_linear: QuantiseLinear
) -> Callable[[ExpertWeights, str | None], PackedExpert]:
    def pack(weight: torch.Tensor, bias: torch.Tensor | None, scheme: str | None) -> PackedLinear:
        return pack_linear(weight, bias) if scheme is None else quantise_linear(weight, bias, scheme)

    def pack_expert(each: ExpertWeights, scheme: str | None) -> PackedExpert:
        return PackedExpert(pack(each.gate_up, each.gate_up_bias, scheme), pack(each.down, each.down_bias, scheme))

    return pack_expert


def pack_experts_with(pack_linear: PackLinear, quantise_linear: QuantiseLinear) -> PackExperts:
    """Experts as pairs of linear layers, in the order of the checkpoint."""
    pack_expert = packing_expert(pack_linear, quantise_linear)

    def pack_experts(
        experts: Iterable[ExpertWeights | GroupedExpert], num_experts: int, gate: ExpertGate, scheme: str | None
    ) -> PackedExperts:
        packed = tuple(pack_expert(each, scheme) for each in of_numbers(experts))
        assert len(packed) == num_experts, f"{len(packed)} of {num_experts} experts"
        return PackedExperts(packed, gate)

    return pack_experts


def of_numbers(experts: Iterable[ExpertWeights | GroupedExpert]) -> Iterator[ExpertWeights]:
    for each in experts:
        assert isinstance(each, ExpertWeights), "these kernels take no codes"
        yield each


pack_experts_reference = pack_experts_with(pack_linear_reference, quantise_linear_reference)


def repack_experts_reference(packed: PackedExperts) -> PackedExperts:
    """torch reads weights in the order in which it has packed them."""
    return packed


def place_experts_reference(packed: PackedExperts) -> PackedExperts:
    """Return the experts as they are: torch has no table of addresses."""
    return packed
