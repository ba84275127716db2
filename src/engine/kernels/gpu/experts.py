"""A layer of experts in four launches, without a value that the host must read.

What comes in is tokens, the experts that were chosen for each, and their weights. A row is a token and one of its
experts: row = token * experts per token + place of the expert. What goes out is the weighted sum of each token's rows.
With two tokens whose experts are (2, 0) and (0, 1), the rows 0 to 3 have the experts 2, 0, 0 and 1:

    _sort_rows       order = [1, 2, 3, 0], the rows sorted by expert; starts = [0, 2, 3, 4], where each expert's begin
    _multiply_rows   each row times the gates and ups of its expert (or only ups), and activated, in sorted order
    _multiply_rows   times the down projection; the results are in the order of rows
    _add_rows        the weighted sum of each token, in the order of its choice: the same in any batch

Programs of _multiply_rows have a tile of one expert's rows. Their number is the maximum of tiles: each finds its expert
and its rows from `starts`, and those beyond the last tile end.
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
_MAX_SORT_BLOCK = 1024  # rows that a program sorts at once
_MAX_ADD_BLOCK = 1024  # elements of one program of _add_rows


@dataclass(frozen=True, slots=True)
class _Tile:
    """What one program of _multiply_rows multiplies."""

    rows: int
    outputs: int
    depth: int  # inputs at once
    num_warps: int
    num_stages: int


# By the average number of rows of an expert. Not timed: sums fit in the registers, stages in shared memory.
_TILES = {16: _Tile(16, 64, 128, 4, 3), 64: _Tile(32, 64, 64, 4, 3), 1 << 62: _Tile(64, 128, 64, 8, 3)}
_INTERPRETED = _Tile(16, 32, 64, 4, 1)


@triton.jit(do_not_specialize=["num_rows"])
def _sort_rows(ids, starts, order, num_rows, num_experts, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr):
    """One program for each expert: it counts the rows of the experts before, and writes its own after them."""
    wait(IS_DEPENDENT)
    expert = tl.program_id(0)
    rows = tl.arange(0, BLOCK)
    place = tl.sum(tl.zeros([BLOCK], tl.int32), 0)
    for begin in range(0, num_rows, BLOCK):
        found = tl.load(ids + begin + rows, mask=begin + rows < num_rows, other=num_experts)
        place += tl.sum((found < expert).to(tl.int32), 0)
    tl.store(starts + expert, place)
    for begin in range(0, num_rows, BLOCK):
        is_own = tl.load(ids + begin + rows, mask=begin + rows < num_rows, other=num_experts) == expert
        rank = tl.cumsum(is_own.to(tl.int32), 0)
        tl.store(order + place + rank - 1, begin + rows, mask=is_own)
        place += tl.sum(is_own.to(tl.int32), 0)
    if expert == num_experts - 1:
        tl.store(starts + num_experts, place)


@triton.jit
def _gated(gates, ups, alpha, limit, offset, GATE: tl.constexpr):
    if GATE != _CLAMPED_SWIGLU:
        return activated(gates, GATE) * ups
    gates = tl.where(gates > limit, limit, gates)
    ups = tl.where(ups > limit, limit, tl.where(ups < -limit, -limit, ups))
    return gates * tl.sigmoid(alpha * gates) * (ups + offset)


@triton.jit
def _multiply_tile(
    x_rows, is_row, weight, bias, expert, width, depth, alpha, limit, offset, ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, GATE: tl.constexpr, IS_GATE_UP: tl.constexpr, HAS_GATES: tl.constexpr,
    HAS_BIAS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """[ROWS, OUTPUTS] float32. x_rows: pointers to the inputs of each row. With gates, they are the first matrix."""
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = outputs < width
    matrix_width = 2 * width if HAS_GATES else width
    matrix = weight + expert.to(tl.int64) * matrix_width * depth + outputs.to(tl.int64)[:, None] * depth
    matrix_of_ups = matrix + tl.cast(width, tl.int64) * depth
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    ups = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for begin in range(0, depth, DEPTH):
        k = begin + tl.arange(0, DEPTH)
        is_k = k < depth
        values = tl.load(x_rows + k[None, :], mask=is_row[:, None] & is_k[None, :], other=0.0)
        weights = tl.load(matrix + k[None, :], mask=is_output[:, None] & is_k[None, :], other=0.0)
        if UPCAST:
            values = values.to(tl.float32)
        sums += tl.dot(values, tl.trans(weights.to(values.dtype)), input_precision="ieee")
        if HAS_GATES:
            weights = tl.load(matrix_of_ups + k[None, :], mask=is_output[:, None] & is_k[None, :], other=0.0)
            ups += tl.dot(values, tl.trans(weights.to(values.dtype)), input_precision="ieee")
    if HAS_BIAS:
        own_bias = bias + expert * matrix_width + outputs
        sums += tl.load(own_bias, mask=is_output, other=0.0).to(tl.float32)[None, :]
        if HAS_GATES:
            ups += tl.load(own_bias + width, mask=is_output, other=0.0).to(tl.float32)[None, :]
    if HAS_GATES:
        sums = _gated(sums, ups, alpha, limit, offset, GATE)
    elif IS_GATE_UP:
        sums = activated(sums, GATE)
    return sums


@triton.jit
def _multiply_rows(
    x, starts, order, weight, bias, out, per_token, num_experts, width, depth, alpha, limit, offset,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, EXPERTS: tl.constexpr, GATE: tl.constexpr,
    IS_GATE_UP: tl.constexpr, HAS_GATES: tl.constexpr, HAS_BIAS: tl.constexpr, UPCAST: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A tile of rows of one expert.

    IS_GATE_UP: x has tokens, and out has rows in sorted order. Else x has these, and out has rows in their own order.
    """
    wait(IS_DEPENDENT)
    tile = tl.program_id(1)
    experts = tl.arange(0, EXPERTS)
    firsts = tl.load(starts + experts, mask=experts < num_experts, other=0)
    ends = tl.load(starts + experts + 1, mask=experts < num_experts, other=0)
    num_tiles = (ends - firsts + ROWS - 1) // ROWS
    expert = tl.sum((tl.cumsum(num_tiles, 0) <= tile).to(tl.int32), 0)  # experts all of whose tiles come before
    if expert < num_experts:
        tile_of_expert = tile - tl.sum(tl.where(experts < expert, num_tiles, 0), 0)
        places = tl.load(starts + expert) + tile_of_expert * ROWS + tl.arange(0, ROWS)
        is_row = places < tl.load(starts + expert + 1)
        rows = tl.load(order + places, mask=is_row, other=0)
        if IS_GATE_UP:
            sources, targets = rows // per_token, places
        else:
            sources, targets = places, rows
        sums = _multiply_tile(
            x + sources.to(tl.int64)[:, None] * depth, is_row, weight, bias, expert, width, depth, alpha, limit, offset,
            ROWS, OUTPUTS, DEPTH, GATE, IS_GATE_UP, HAS_GATES, HAS_BIAS, UPCAST,
        )  # fmt: skip
        outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
        address = out + targets.to(tl.int64)[:, None] * width + outputs[None, :]
        tl.store(address, sums.to(out.dtype.element_ty), mask=is_row[:, None] & (outputs < width)[None, :])


@triton.jit
def _add_rows(
    y, ids, weights, base, base_gate, out, per_token, num_experts, width, BLOCK: tl.constexpr, HAS_BASE: tl.constexpr,
    HAS_GATE: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program for a block of columns of a token. y: [rows, width]. base: [tokens, width], added to the sum."""
    wait(IS_DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < width
    total = tl.zeros([BLOCK], tl.float32)
    if HAS_BASE:
        total += tl.load(base + token * width + columns, mask=is_column, other=0.0).to(tl.float32)
        if HAS_GATE:
            total *= tl.sigmoid(tl.load(base_gate + token).to(tl.float32))
    for place in range(per_token):
        row = token * per_token + place
        expert = tl.load(ids + row)
        # The rows of an expert that does not exist were not computed: none of their columns is read.
        num_columns = tl.where((expert >= 0) & (expert < num_experts), width, 0)
        found = tl.load(y + row * width + columns, mask=columns < num_columns, other=0.0).to(tl.float32)
        total += found * tl.load(weights + row)
    tl.store(out + token * width + columns, total.to(out.dtype.element_ty), mask=is_column)


def pack_experts_gpu(
    experts: Iterable[ExpertWeights | GroupedExpert], num_experts: int, gate: ExpertGate, scheme: str | None
) -> PackedExperts:
    """All experts of a layer in one tensor for each matrix; torch computes quantised ones."""
    if scheme is not None:
        return pack_experts_reference(experts, num_experts, gate, scheme)
    gate_ups, downs, gate_up_biases, down_biases = _stacked(of_numbers(experts), num_experts)
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


def _stacked(experts: Iterable[ExpertWeights], num_experts: int) -> list[torch.Tensor | None]:
    """Gates and ups, downs and the biases of both, of all experts: only one expert exists twice at any time."""
    stacked: list[torch.Tensor | None] = []
    for index, each in enumerate(experts):
        parts = each.gate_up, each.down, each.gate_up_bias, each.down_bias
        if not stacked:
            stacked = [None if part is None else part.new_empty(num_experts, *part.shape) for part in parts]
        for whole, part in zip(stacked, parts, strict=True):
            if whole is not None and part is not None:
                whole[index] = part
    return stacked


@dataclass(frozen=True, slots=True)
class _SortedRows:
    """The rows of a step, and the tiles that they are multiplied in."""

    order: torch.Tensor  # [rows] int32: the rows, sorted by expert
    starts: torch.Tensor  # [experts + 1] int32: where the rows of each expert begin in the order
    per_token: int
    tile: _Tile
    max_tiles: int


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
    num_tokens, per_token = ids.shape
    check_shapes(x, ids, weights, hidden)
    out = torch.empty_like(x)
    if not ids.numel():
        return out
    rows = _sorted(ids, num_experts)
    # The bias of the first expert is where those of all begin.
    gate_up_bias, down_bias = packed.experts[0].gate_up.bias, packed.experts[0].down.bias
    gated = _multiplied(x, rows, packed.gate_ups, gate_up_bias, inner, packed.gate, is_gate_up=True)
    y = _multiplied(gated, rows, packed.downs, down_bias, hidden, packed.gate, is_gate_up=False)
    block = min(_MAX_ADD_BLOCK, triton.next_power_of_2(hidden))
    _add_rows[(num_tokens, triton.cdiv(hidden, block))](
        y, ids, weights, base, base_gate, out, per_token, num_experts, hidden, BLOCK=block,
        HAS_BASE=base is not None, HAS_GATE=base_gate is not None, num_warps=num_warps(block), **dependent(),
    )  # fmt: skip
    return out


def _sorted(ids: torch.Tensor, num_experts: int) -> _SortedRows:
    num_rows = ids.numel()
    starts = torch.empty(num_experts + 1, dtype=torch.int32, device=ids.device)
    order = torch.empty(num_rows, dtype=torch.int32, device=ids.device)
    block = min(_MAX_SORT_BLOCK, triton.next_power_of_2(num_rows))
    _sort_rows[(num_experts,)](ids, starts, order, num_rows, num_experts, BLOCK=block, **dependent())
    tile = _tile(num_rows, num_experts)
    # Each expert has at most one tile that is not full, and each tile has a row.
    max_tiles = min(num_rows, num_rows // tile.rows + num_experts)
    return _SortedRows(order, starts, ids.shape[1], tile, max_tiles)


def _multiplied(
    x: torch.Tensor,
    rows: _SortedRows,
    matrices: torch.Tensor,
    bias: torch.Tensor | None,
    width: int,
    gate: ExpertGate,
    *,
    is_gate_up: bool,
) -> torch.Tensor:
    """[rows, width]. matrices: of all experts, [experts, outputs, inputs]; with gates, the outputs are 2 * width."""
    out = torch.empty(len(rows.order), width, dtype=x.dtype, device=x.device)
    tile = rows.tile
    num_experts, _, depth = matrices.shape
    _multiply_rows[(triton.cdiv(width, tile.outputs), rows.max_tiles)](
        x, rows.starts, rows.order, matrices, bias, out, rows.per_token, num_experts, width, depth, gate.alpha,
        gate.limit, gate.offset, ROWS=tile.rows, OUTPUTS=tile.outputs,
        DEPTH=min(tile.depth, max(16, triton.next_power_of_2(depth))), EXPERTS=triton.next_power_of_2(num_experts),
        GATE=GATES.index(gate.kind) if is_gate_up else _NO_GATE, IS_GATE_UP=is_gate_up,
        HAS_GATES=is_gate_up and gate.has_gates, HAS_BIAS=bias is not None, UPCAST=is_interpreted(),
        num_warps=tile.num_warps, num_stages=tile.num_stages, **dependent(),
    )  # fmt: skip
    return out


def _tile(num_rows: int, num_experts: int) -> _Tile:
    if is_interpreted():
        return _INTERPRETED
    return next(tile for max_average, tile in _TILES.items() if num_rows <= max_average * num_experts)
