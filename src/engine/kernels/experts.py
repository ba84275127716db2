"""A layer of experts: each token goes through the feed-forward blocks that were chosen for it, and their outputs
are added, weighted. Sums are float32, in an order that depends only on the token's experts.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F

from ...model.activations import Activation
from ...model.quantised import EXPERT_STEP, PANEL_WIDTH
from .activation import ACTIVATIONS, activate_and_mul_reference, activate_reference
from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer
from .grouped import Grouped, are_alike, stacked
from .linear import (
    PackedLinear,
    PackGrouped,
    PackLinear,
    QuantiseLinear,
    linear_reference,
    pack_linear_reference,
    quantise_linear_reference,
)
from .panel_linear import panel_products
from .panel_packing import DEPTH_STEPS

logger = logging.getLogger(__name__)
Gate = Activation | Literal["clamped_swiglu"]
GATES: tuple[Gate, ...] = (*ACTIVATIONS, "clamped_swiglu")  # in the order of cpu/experts.cpp


@dataclass(frozen=True, slots=True)
class ExpertGate:
    """How the gate changes the up projection of an expert.

    activation(gate) * up, or clamped_swiglu (gpt-oss): g * sigmoid(alpha * g) * (u + 1), where g is the gate up to
    `limit` and u the up from -limit to limit. Without gates: activation(up).
    """

    kind: Gate = "silu"
    has_gates: bool = True
    alpha: float = 1.702
    limit: float = 7.0


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
    gated = gates * torch.sigmoid(gate.alpha * gates) * (ups.clamp(-gate.limit, gate.limit) + 1)
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


def _pack_expert_with(
    pack_linear: PackLinear, quantise_linear: QuantiseLinear
) -> Callable[[ExpertWeights, str | None], PackedExpert]:
    def pack(weight: torch.Tensor, bias: torch.Tensor | None, scheme: str | None) -> PackedLinear:
        return pack_linear(weight, bias) if scheme is None else quantise_linear(weight, bias, scheme)

    def pack_expert(each: ExpertWeights, scheme: str | None) -> PackedExpert:
        return PackedExpert(pack(each.gate_up, each.gate_up_bias, scheme), pack(each.down, each.down_bias, scheme))

    return pack_expert


def pack_experts_with(pack_linear: PackLinear, quantise_linear: QuantiseLinear) -> PackExperts:
    """Experts as pairs of linear layers, in the order of the checkpoint."""
    pack_expert = _pack_expert_with(pack_linear, quantise_linear)

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


def pack_experts_cpu(
    library: CpuLibrary,
    pack_linear: PackLinear,
    quantise_linear: QuantiseLinear,
    pack_grouped: PackGrouped | None,
    dtype: torch.dtype,
    unpacked: PackExperts,
) -> PackExperts:
    """Packs each expert as two linear layers. Its inner width is padded with zeros, which have no effect.

    dtype: of the model. unpacked: packs the layers that the kernels do not support.
    """
    pack_numbers = _pack_expert_with(pack_linear, quantise_linear)
    place = place_experts_cpu(library)

    def pack_expert(each: ExpertWeights | GroupedExpert, scheme: str | None) -> PackedExpert:
        if isinstance(each, ExpertWeights):
            return pack_numbers(_in_turns(each), scheme)
        assert pack_grouped is not None, "these kernels take no codes"
        inner = each.down.shape[1]
        turns = _turns(len(each.gate_up), inner)
        bias = None if each.gate_up_bias is None else each.gate_up_bias[turns]
        gate_up = pack_grouped([stacked(each.gate_up).rows(turns)], bias, dtype)
        down = pack_grouped([each.down], each.down_bias, dtype)
        assert gate_up is not None, "groups are checked when they are read"
        assert down is not None, "groups are checked when they are read"
        return PackedExpert(gate_up, down)

    def pack_experts(
        experts: Iterable[ExpertWeights | GroupedExpert], num_experts: int, gate: ExpertGate, scheme: str | None
    ) -> PackedExperts:
        remaining = iter(experts)
        first = next(remaining)
        packed = [pack_expert(first, scheme)]
        if not (packed[0].gate_up.is_packed and packed[0].down.is_packed):
            return unpacked(itertools.chain((first,), remaining), num_experts, gate, scheme)
        del first
        packed.extend(pack_expert(each, scheme) for each in remaining)
        assert len(packed) == num_experts, f"{len(packed)} of {num_experts} experts"
        return place(PackedExperts(tuple(packed), gate))

    return pack_experts


def place_experts_reference(packed: PackedExperts) -> PackedExperts:
    """Return the experts as they are: torch has no table of addresses."""
    return packed


def place_experts_cpu(library: CpuLibrary) -> PlaceExperts:
    product_of = panel_products(library)

    def table_of(layers: list[PackedLinear]) -> torch.Tensor:
        rows = [
            (product_of(each), each.weight.data_ptr(), _address(each.scales), _address(each.bias)) for each in layers
        ]
        return torch.tensor(rows, dtype=torch.int64)

    def place_experts(packed: PackedExperts) -> PackedExperts:
        gate_ups, downs = [each.gate_up for each in packed.experts], [each.down for each in packed.experts]
        if not all(each.is_packed for each in (*gate_ups, *downs)):
            return packed
        return replace(packed, gate_ups=table_of(gate_ups), downs=table_of(downs))

    return place_experts


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _turns(parts: int, inner: int) -> torch.Tensor:
    """[parts * inner]: panels of gates and of ups in turns, as indices of the gates followed by the ups."""
    return torch.arange(parts * inner).view(parts, -1, PANEL_WIDTH).transpose(0, 1).flatten()


def _in_turns(weights: ExpertWeights) -> ExpertWeights:
    """The layout of cpu/experts.cpp: panels of gates and of ups in turns, and a depth that all formats support."""
    padding = -weights.down.shape[1] % EXPERT_STEP
    inner = weights.down.shape[1]
    parts = len(weights.gate_up) // inner  # gates and ups, or ups
    turns = _turns(parts, inner + padding)

    def panels_in_turns(rows: torch.Tensor) -> torch.Tensor:
        """rows: [parts * I, ...]."""
        return torch.cat([_padded(part, padding) for part in rows.chunk(parts)])[turns]

    bias = weights.gate_up_bias
    return ExpertWeights(
        panels_in_turns(weights.gate_up),
        F.pad(weights.down, (0, padding)),
        None if bias is None else panels_in_turns(bias),
        weights.down_bias,
    )


def _padded(rows: torch.Tensor, count: int) -> torch.Tensor:
    return torch.cat((rows, rows.new_zeros(count, *rows.shape[1:])))


def repack_experts_cpu(pack_experts: PackExperts) -> RepackExperts:
    """See repack_linear_cpu."""

    def checkpoint_order(packed: PackedExperts) -> Iterator[ExpertWeights]:
        for each in packed.experts:
            yield ExpertWeights(each.gate_up.weight, each.down.weight, each.gate_up.bias, each.down.bias)

    def repack_experts(packed: PackedExperts) -> PackedExperts:
        if packed.gate_ups is not None or packed.experts[0].gate_up.scales is not None:
            return packed
        try:
            repacked = pack_experts(checkpoint_order(packed), len(packed.experts), packed.gate, None)
            return packed if repacked.gate_ups is None else repacked
        except (MemoryError, RuntimeError) as error:  # torch's allocator raises RuntimeError
            logger.warning("experts stay in the order of torch, which is slower: %s", error)
            return packed

    return repack_experts


def experts_cpu(library: CpuLibrary, unpacked: Experts = experts_reference) -> Experts:
    """unpacked: computes layers that are not packed."""
    empty = library.memory.empty
    arguments = [POINTER] * 8 + [INT64] * 5 + [INT] * 2 + [FLOAT] * 2
    calls = {dtype: library.op("experts", dtype, arguments, INT) for dtype in DEPTH_STEPS}

    def experts(
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        packed: PackedExperts,
        base: torch.Tensor | None = None,
        base_gate: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if packed.gate_ups is None or packed.downs is None:
            return unpacked(x, ids, weights, packed, base, base_gate)
        gate_up, down = packed.experts[0].gate_up, packed.experts[0].down
        tokens, per_token = ids.shape
        check_shapes(x, ids, weights, gate_up.in_features)
        dtype = gate_up.dtype
        out = empty(tokens, down.out_features, dtype=dtype)
        failed = calls[dtype](
            pointer(x, dtype),
            pointer(ids, torch.int32),
            pointer(weights, torch.float32),
            packed.gate_ups.data_ptr(),
            packed.downs.data_ptr(),
            None if base is None else pointer(base, dtype),
            None if base_gate is None else pointer(base_gate, dtype),
            out.data_ptr(),
            tokens,
            per_token,
            len(packed.experts),
            down.out_features,
            down.in_features,
            GATES.index(packed.gate.kind),
            packed.gate.has_gates,
            packed.gate.alpha,
            packed.gate.limit,
        )
        if failed:
            raise IndexError(f"the id of an expert is not below {len(packed.experts)}")
        return out

    return experts
