"""A layer of experts in four launches, with no number that the host must read.

1. Rows (a token and one of its experts) are sorted by expert.
2. The gates and ups of every expert's rows (or only ups), in tiles of rows, and their activations. The number of
   programs is the maximum of tiles; each finds its expert and its rows from the sorted order, and those beyond the last
   tile end.
3. The outputs, in the same tiles.
4. The weighted sum of each token, in the order of its choice: the same in any batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..experts import (
    GATES,
    ExpertGate,
    ExpertWeights,
    GroupedExpert,
    PackedExpert,
    PackedExperts,
    check_shapes,
    experts_reference,
    of_numbers,
    pack_experts_reference,
)
from ..linear import pack_linear_reference
from .activation import activated
from .launch import dependent, is_interpreted, num_warps, wait

_CLAMPED_SWIGLU = tl.constexpr(GATES.index("clamped_swiglu"))
_NO_GATE = len(GATES)
_SORTED = 1024  # rows that a program sorts at once
_BLOCK = 1024  # elements of one program of a sum


@dataclass(frozen=True, slots=True)
class _Tile:
    rows: int
    outputs: int
    depth: int
    warps: int
    stages: int


# By the average number of rows of an expert. Not timed: sums fit in the registers, stages in shared memory.
_TILES = {16: _Tile(16, 64, 128, 4, 3), 64: _Tile(32, 64, 64, 4, 3), 1 << 62: _Tile(64, 128, 64, 8, 3)}
_INTERPRETED = _Tile(16, 32, 64, 4, 1)


@triton.jit(do_not_specialize=["num_rows"])
def _sort(ids, starts, places, num_rows, num_experts, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr):
    """One program for each expert. starts [num_experts + 1]: of the rows of each; places: the rows, sorted."""
    wait(IS_DEPENDENT)
    expert = tl.program_id(0)
    rows = tl.arange(0, BLOCK)
    at = tl.sum(tl.zeros([BLOCK], tl.int32), 0)
    for begin in range(0, num_rows, BLOCK):
        found = tl.load(ids + begin + rows, mask=begin + rows < num_rows, other=num_experts)
        at += tl.sum((found < expert).to(tl.int32), 0)
    tl.store(starts + expert, at)
    for begin in range(0, num_rows, BLOCK):
        is_own = tl.load(ids + begin + rows, mask=begin + rows < num_rows, other=num_experts) == expert
        rank = tl.cumsum(is_own.to(tl.int32), 0)
        tl.store(places + at + rank - 1, begin + rows, mask=is_own)
        at += tl.sum(is_own.to(tl.int32), 0)
    if expert == num_experts - 1:
        tl.store(starts + num_experts, at)


@triton.jit
def _gated(gates, ups, alpha, limit, GATE: tl.constexpr):
    if GATE != _CLAMPED_SWIGLU:
        return activated(gates, GATE) * ups
    gates = tl.where(gates > limit, limit, gates)
    ups = tl.where(ups > limit, limit, tl.where(ups < -limit, -limit, ups))
    return gates * tl.sigmoid(alpha * gates) * (ups + 1)


@triton.jit
def _multiply(
    x, starts, places, weight, bias, out, per_token, num_experts, width, depth, alpha, limit,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, EXPERTS: tl.constexpr, GATE: tl.constexpr,
    IS_FIRST: tl.constexpr, HAS_UPS: tl.constexpr, HAS_BIAS: tl.constexpr, UPCAST: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A tile of rows of one expert. First: from rows of tokens to sorted rows, activated, and times the ups if there
    are some. Else: from sorted rows to places."""
    wait(IS_DEPENDENT)
    tile = tl.program_id(1)
    experts = tl.arange(0, EXPERTS)
    firsts = tl.load(starts + experts, mask=experts < num_experts, other=0)
    ends = tl.load(starts + experts + 1, mask=experts < num_experts, other=0)
    tiles = (ends - firsts + ROWS - 1) // ROWS
    expert = tl.sum((tl.cumsum(tiles, 0) <= tile).to(tl.int32), 0)
    if expert < num_experts:
        own_tile = tile - tl.sum(tl.where(experts < expert, tiles, 0), 0)
        rows = tl.load(starts + expert) + own_tile * ROWS + tl.arange(0, ROWS)
        is_row = rows < tl.load(starts + expert + 1)
        own = tl.load(places + rows, mask=is_row, other=0)
        outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
        is_output = outputs < width
        if IS_FIRST:
            sources, targets = own // per_token, rows
        else:
            sources, targets = rows, own
        matrix_width = 2 * width if HAS_UPS else width
        from_rows = x + sources.to(tl.int64)[:, None] * depth
        matrix = weight + expert.to(tl.int64) * matrix_width * depth + outputs.to(tl.int64)[:, None] * depth
        of_ups = matrix + tl.cast(width, tl.int64) * depth
        sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
        ups = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for begin in range(0, depth, DEPTH):
            k = begin + tl.arange(0, DEPTH)
            is_k = k < depth
            values = tl.load(from_rows + k[None, :], mask=is_row[:, None] & is_k[None, :], other=0.0)
            weights = tl.load(matrix + k[None, :], mask=is_output[:, None] & is_k[None, :], other=0.0)
            if UPCAST:
                values = values.to(tl.float32)
            sums += tl.dot(values, tl.trans(weights.to(values.dtype)), input_precision="ieee")
            if HAS_UPS:
                weights = tl.load(of_ups + k[None, :], mask=is_output[:, None] & is_k[None, :], other=0.0)
                ups += tl.dot(values, tl.trans(weights.to(values.dtype)), input_precision="ieee")
        if HAS_BIAS:
            of_expert = bias + expert * matrix_width + outputs
            sums += tl.load(of_expert, mask=is_output, other=0.0).to(tl.float32)[None, :]
            if HAS_UPS:
                ups += tl.load(of_expert + width, mask=is_output, other=0.0).to(tl.float32)[None, :]
        if HAS_UPS:
            sums = _gated(sums, ups, alpha, limit, GATE)
        elif IS_FIRST:
            sums = activated(sums, GATE)
        to = out + targets.to(tl.int64)[:, None] * width + outputs[None, :]
        tl.store(to, sums.to(out.dtype.element_ty), mask=is_row[:, None] & is_output[None, :])


@triton.jit
def _add(
    y, ids, weights, base, base_gate, out, per_token, num_experts, width, BLOCK: tl.constexpr, HAS_BASE: tl.constexpr,
    HAS_GATE: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = columns < width
    total = tl.zeros([BLOCK], tl.float32)
    if HAS_BASE:
        total += tl.load(base + token * width + columns, mask=is_there, other=0.0).to(tl.float32)
        if HAS_GATE:
            total *= tl.sigmoid(tl.load(base_gate + token).to(tl.float32))
    for place in range(per_token):
        row = token * per_token + place
        expert = tl.load(ids + row)
        known = tl.where((expert >= 0) & (expert < num_experts), width, 0)  # other rows have not been computed
        found = tl.load(y + row * width + columns, mask=columns < known, other=0.0).to(tl.float32)
        total += found * tl.load(weights + row)
    tl.store(out + token * width + columns, total.to(out.dtype.element_ty), mask=is_there)


def pack_experts_gpu(
    experts: Iterable[ExpertWeights | GroupedExpert], num_experts: int, gate: ExpertGate, scheme: str | None
) -> PackedExperts:
    """All experts of a layer in one tensor for each matrix; torch computes quantised ones."""
    if scheme is not None:
        return pack_experts_reference(experts, num_experts, gate, scheme)
    stacked: list[torch.Tensor | None] = []
    for index, each in enumerate(of_numbers(experts)):
        parts = each.gate_up, each.down, each.gate_up_bias, each.down_bias
        if not stacked:
            stacked = [None if part is None else part.new_empty(num_experts, *part.shape) for part in parts]
        for whole, part in zip(stacked, parts, strict=True):
            if whole is not None and part is not None:
                whole[index] = part
    gate_ups, downs, gate_up_biases, down_biases = stacked
    assert gate_ups is not None
    assert downs is not None
    packed = tuple(
        PackedExpert(
            pack_linear_reference(gate_ups[index], None if gate_up_biases is None else gate_up_biases[index]),
            pack_linear_reference(downs[index], None if down_biases is None else down_biases[index]),
        )
        for index in range(num_experts)
    )
    return PackedExperts(packed, gate, gate_ups, downs)


def experts_gpu(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    packed: PackedExperts,
    base: torch.Tensor | None = None,
    base_gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes experts_reference; all tensors are contiguous. An expert that does not exist adds nothing."""
    if packed.gate_ups is None or packed.downs is None:
        return experts_reference(x, ids, weights, packed, base, base_gate)
    num_experts, hidden, inner = packed.downs.shape
    tokens, per_token = ids.shape
    check_shapes(x, ids, weights, hidden)
    num_rows = tokens * per_token
    out = torch.empty_like(x)
    if not num_rows:
        return out
    tile = _tile(num_rows, num_experts)
    # Each expert has at most one tile that is not full, and each tile has a row.
    max_tiles = min(num_rows, num_rows // tile.rows + num_experts)
    starts = torch.empty(num_experts + 1, dtype=torch.int32, device=x.device)
    places = torch.empty(num_rows, dtype=torch.int32, device=x.device)
    block = min(_SORTED, triton.next_power_of_2(num_rows))
    _sort[(num_experts,)](ids, starts, places, num_rows, num_experts, BLOCK=block, **dependent())
    first = packed.experts[0]

    def multiply(
        rows: torch.Tensor, matrices: torch.Tensor, bias: torch.Tensor | None, width: int, is_first: bool
    ) -> torch.Tensor:
        made = torch.empty(num_rows, width, dtype=x.dtype, device=x.device)
        depth = matrices.shape[2]
        _multiply[(triton.cdiv(width, tile.outputs), max_tiles)](
            rows, starts, places, matrices, bias, made, per_token, num_experts, width, depth, packed.gate.alpha,
            packed.gate.limit, ROWS=tile.rows, OUTPUTS=tile.outputs,
            DEPTH=min(tile.depth, max(16, triton.next_power_of_2(depth))), EXPERTS=triton.next_power_of_2(num_experts),
            GATE=GATES.index(packed.gate.kind) if is_first else _NO_GATE, IS_FIRST=is_first,
            HAS_UPS=is_first and packed.gate.has_gates, HAS_BIAS=bias is not None, UPCAST=is_interpreted(),
            num_warps=tile.warps, num_stages=tile.stages, **dependent(),
        )  # fmt: skip
        return made

    # The bias of the first expert is where those of all begin.
    gated = multiply(x, packed.gate_ups, first.gate_up.bias, inner, is_first=True)
    y = multiply(gated, packed.downs, first.down.bias, hidden, is_first=False)
    block = min(_BLOCK, triton.next_power_of_2(hidden))
    _add[(tokens, triton.cdiv(hidden, block))](
        y, ids, weights, base, base_gate, out, per_token, num_experts, hidden, BLOCK=block,
        HAS_BASE=base is not None, HAS_GATE=base_gate is not None, num_warps=num_warps(block), **dependent(),
    )  # fmt: skip
    return out


def _tile(num_rows: int, num_experts: int) -> _Tile:
    if is_interpreted():
        return _INTERPRETED
    return next(tile for most, tile in _TILES.items() if num_rows <= most * num_experts)
