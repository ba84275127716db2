"""Layers of experts over panels, by the C++ library (cpu/experts.cpp).

Each expert is packed as two linear layers. Panels of its gates and of its ups are in turns, so that a thread computes
both for the same outputs. The library reads a table with one row of addresses for each linear layer:

    function of its format, weight, scales, bias
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F

from ...model.quantised import EXPERT_STEP, PANEL_WIDTH
from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer
from .experts import (
    GATES,
    ExpertGate,
    Experts,
    ExpertWeights,
    GroupedExpert,
    PackedExpert,
    PackedExperts,
    PackExperts,
    PlaceExperts,
    RepackExperts,
    check_shapes,
    experts_reference,
    packing_expert,
)
from .grouped import stacked
from .linear import PackedLinear, PackGrouped, PackLinear, QuantiseLinear
from .panel_linear import panel_products
from .panel_packing import DEPTH_STEPS

logger = logging.getLogger(__name__)


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
    pack_numbers = packing_expert(pack_linear, quantise_linear)
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
    arguments = [POINTER] * 8 + [INT64] * 5 + [INT] * 2 + [FLOAT] * 3
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
            packed.gate.offset,
        )
        if failed:
            raise IndexError(f"the id of an expert is not below {len(packed.experts)}")
        return out

    return experts
