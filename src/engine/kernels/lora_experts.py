"""adapted_experts: a layer of experts (experts.py) whose products have deltas of adapters (LoRA) for some rows.

The deltas of an expert's first product are added before its activation, and those of its second one before its output
is weighted. On a CPU the rows of each expert are sorted by adapter, and the op reads a table of addresses, so that
captured steps compute what the table and the slots of the tokens hold when they are replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer
from .experts import GATES, PackedExperts, check_shapes, expert_gate_reference
from .linear import linear_reference
from .lora_add import LoraWeights, delta_reference
from .panel_packing import DEPTH_STEPS

_LINE = 11  # numbers of a line of the table, see cpu/experts.cpp


@dataclass(frozen=True, slots=True)
class ExpertLora:
    """What one adapter adds to the two products of one expert, None if nothing. There are no biases."""

    gate_up: LoraWeights | None  # its parts are gates and ups, or ups
    down: LoraWeights | None

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in (self.gate_up, self.down) if each is not None)


class LoraExperts:
    """The adapters of the experts of one layer, by slot. The table is at the same address as long as the layer exists.

    A line of the table, for a slot and an expert, has the address of the first A and its rows; of gates and of ups the
    first row of A, the rank and the address of B; the address of the second A, its rank and the address of its B.
    """

    def __init__(
        self, num_experts: int, hidden: int, inner: int, num_slots: int, device: torch.device, *, has_gates: bool = True
    ) -> None:
        """num_experts: of this process. inner: the width inside an expert, without padding."""
        self.num_experts, self.hidden, self.inner = num_experts, hidden, inner
        self.gate_up_widths = (inner, inner) if has_gates else (inner,)
        self.slots: list[Mapping[int, ExpertLora]] = [{} for _ in range(num_slots)]
        self.table = torch.zeros(num_slots, num_experts, _LINE, dtype=torch.int64, device=device)

    def place(self, slot: int, weights: Mapping[int, ExpertLora]) -> None:
        """weights: what an adapter adds, by the places of experts in this process."""
        self.slots[slot] = weights
        self.table[slot] = 0
        if weights:
            lines = torch.tensor([_line_of(each) for each in weights.values()], dtype=torch.int64)
            self.table[slot, torch.tensor(list(weights))] = lines.to(self.table.device)


def _line_of(weights: ExpertLora) -> list[int]:
    line = [0] * _LINE
    if (first := weights.gate_up) is not None:
        line[:2] = first.a.data_ptr(), len(first.a)
        at = 5 if len(first.b) == 1 else 2  # ups follow gates
        for start, b in zip(first.first, first.b, strict=True):
            line[at : at + 3] = start, b.shape[1], b.data_ptr()
            at += 3
    if (second := weights.down) is not None:
        line[8:] = second.a.data_ptr(), second.b[0].shape[1], second.b[0].data_ptr()
    return line


# x, ids, weights, experts, base, gate of the base, slots, adapters: see the reference.
AdaptedExperts = Callable[
    [
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        PackedExperts,
        torch.Tensor | None,
        torch.Tensor | None,
        torch.Tensor,
        LoraExperts,
    ],
    torch.Tensor,
]


def adapted_experts_reference(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    packed: PackedExperts,
    base: torch.Tensor | None,
    base_gate: torch.Tensor | None,
    slots: torch.Tensor,
    layer: LoraExperts,
) -> torch.Tensor:
    """What experts_reference computes, with the deltas of each token's adapter.

    slots: [T] int32, of the adapters of the tokens; below 0 without one. The other arguments are those of
    experts_reference. Each product is rounded to x's dtype before and after its delta is added, as a linear layer's is.
    """
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device) if base is None else base.float()
    if base_gate is not None:
        total = total * torch.sigmoid(base_gate.float())
    for expert in sorted(set(ids[ids >= 0].tolist())):
        tokens, places = (ids == expert).nonzero(as_tuple=True)
        own, of_rows = packed.experts[expert], slots[tokens]
        gate_up = linear_reference(x[tokens], own.gate_up)
        _add_deltas(gate_up, x[tokens], of_rows, layer, expert, is_down=False)
        gated = expert_gate_reference(gate_up, packed.gate)
        out = linear_reference(gated, own.down)
        _add_deltas(out, gated, of_rows, layer, expert, is_down=True)
        total = total.index_add(0, tokens, out.float() * weights[tokens, places, None])
    return total.to(x.dtype)


def _add_deltas(
    out: torch.Tensor, x: torch.Tensor, slots: torch.Tensor, layer: LoraExperts, expert: int, *, is_down: bool
) -> None:
    """out: [rows, columns], the product of the rows of an expert, with inputs x. slots: [rows]."""
    widths = (layer.hidden,) if is_down else layer.gate_up_widths
    for slot, by_expert in enumerate(layer.slots):
        found = by_expert.get(expert)
        weights = None if found is None else found.down if is_down else found.gate_up
        rows = slots == slot
        if weights is not None and bool(rows.any()):
            out[rows] = (out[rows].float() + delta_reference(x[rows], weights, widths)).to(out.dtype)


def adapted_experts_cpu(library: CpuLibrary, unpacked: AdaptedExperts = adapted_experts_reference) -> AdaptedExperts:
    """Takes adapters whose elements have the type of x. unpacked: computes layers that are not packed."""
    empty = library.memory.empty
    arguments = [POINTER] * 8 + [INT64] * 5 + [INT] * 2 + [FLOAT] * 3 + [POINTER] * 2 + [INT64]
    calls = {dtype: library.op("adapted_experts", dtype, arguments, INT) for dtype in DEPTH_STEPS}

    def adapted_experts(
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        packed: PackedExperts,
        base: torch.Tensor | None,
        base_gate: torch.Tensor | None,
        slots: torch.Tensor,
        layer: LoraExperts,
    ) -> torch.Tensor:
        if packed.gate_ups is None or packed.downs is None:
            return unpacked(x, ids, weights, packed, base, base_gate, slots, layer)
        gate_up, down = packed.experts[0].gate_up, packed.experts[0].down
        tokens, per_token = ids.shape
        check_shapes(x, ids, weights, gate_up.in_features)
        if (layer.num_experts, layer.hidden) != (len(packed.experts), down.out_features) or len(slots) != tokens:
            raise ValueError(
                f"{len(packed.experts)} experts with {down.out_features} outputs have adapters for {layer.num_experts} "
                f"with {layer.hidden}; {tokens} tokens have {len(slots)} slots"
            )
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
            packed.gate.offset,
            pointer(slots, torch.int32),
            layer.table.data_ptr(),
            layer.inner,
        )
        if failed:
            raise IndexError(f"the id of an expert is not below {len(packed.experts)}")
        return out

    return adapted_experts
