"""Deltas of adapters, in two kernels: y = x @ A.T, then out += y @ B.T. The reference is in ../lora_add.py.

The grid is the same for all steps of a shape: a program is for a tile of the rows that one slot could have, and ends
where the slot has none. So a captured launch computes the rows and adapters that its tensors hold when it is replayed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ....model.adapter_bytes import PANEL
from ..lora_add import BIAS, HEAD, RANKS, A, LoraLayer, LoraRows, lora_add_reference
from .launch import dependent, wait

_ROWS, _RANKS, _DEPTH = 16, 16, 64  # of a tile
_A, _BIAS, _NUM_RANKS, _HEAD = (tl.constexpr(each) for each in (A, BIAS, RANKS, HEAD))


@triton.jit
def _shrink(
    x, y, tokens, starts, table, line, depth, y_stride,
    ROWS: tl.constexpr, RANKS: tl.constexpr, DEPTH: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    slot = tl.program_id(2)
    first, end = tl.load(starts + slot), tl.load(starts + slot + 1)
    sorted_rows = first + tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ranks = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
    num_ranks = tl.load(table + slot * line + _NUM_RANKS)
    is_row, is_rank = sorted_rows < end, ranks < num_ranks
    if (first + tl.program_id(0) * ROWS < end) & (tl.program_id(1) * RANKS < num_ranks):
        a = tl.load(table + slot * line + _A).to(tl.pointer_type(x.dtype.element_ty))
        token = tl.load(tokens + sorted_rows, mask=is_row, other=0).to(tl.int64)
        sums = tl.zeros((ROWS, RANKS), tl.float32)
        for begin in range(0, depth, DEPTH):
            k = begin + tl.arange(0, DEPTH)
            is_input = k < depth
            values = tl.load(
                x + token[:, None] * depth + k[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0
            )
            of_ranks = ranks.to(tl.int64)[None, :] * depth + k[:, None]
            weights = tl.load(a + of_ranks, mask=is_rank[None, :] & is_input[:, None], other=0.0)
            sums = tl.dot(values, weights, sums, input_precision="ieee")
        at = sorted_rows.to(tl.int64)[:, None] * y_stride + ranks[None, :]
        tl.store(y + at, sums, mask=is_row[:, None] & is_rank[None, :])


@triton.jit
def _expand(
    y, out, tokens, starts, table, columns, line, width, y_stride,
    PARTS: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, PANEL: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    slot = tl.program_id(2)
    first, end = tl.load(starts + slot), tl.load(starts + slot + 1)
    sorted_rows = first + tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = sorted_rows < end
    # The part that this panel belongs to, its first column, and the panel within the part.
    panel, part, column = tl.program_id(1).to(tl.int64), 0, tl.program_id(1).to(tl.int64) * 0
    for index in tl.static_range(PARTS - 1):
        own = tl.load(columns + index)
        is_later = (part == index) & (panel >= tl.cdiv(own, PANEL))
        panel = tl.where(is_later, panel - tl.cdiv(own, PANEL), panel)
        column = tl.where(is_later, column + own, column)
        part = tl.where(is_later, index + 1, part)
    is_set = tl.load(table + slot * line)  # the first number
    if (first + tl.program_id(0) * ROWS < end) & (is_set != 0):
        of_part = table + slot * line + _HEAD + 3 * part
        first_rank, rank = tl.load(of_part), tl.load(of_part + 1)
        b = tl.load(of_part + 2).to(tl.pointer_type(out.dtype.element_ty))
        lanes = tl.arange(0, PANEL)
        is_column = panel * PANEL + lanes < tl.load(columns + part)
        sums = tl.zeros((ROWS, PANEL), tl.float32)
        for begin in range(0, rank, RANKS):
            k = begin + tl.arange(0, RANKS)
            of_rows = sorted_rows.to(tl.int64)[:, None] * y_stride + (first_rank + k)[None, :]
            values = tl.load(y + of_rows, mask=is_row[:, None] & (k < rank)[None, :], other=0.0)
            weights = tl.load(
                b + (panel * rank + k)[:, None] * PANEL + lanes[None, :], mask=(k < rank)[:, None], other=0.0
            )
            sums = tl.dot(values, weights.to(tl.float32), sums, input_precision="ieee")
        bias = tl.load(table + slot * line + _BIAS)
        at = column + panel * PANEL + lanes
        if bias != 0:
            sums += tl.load(bias.to(tl.pointer_type(tl.float32)) + at, mask=is_column, other=0.0)[None, :]
        token = tl.load(tokens + sorted_rows, mask=is_row, other=0).to(tl.int64)
        into = out + token[:, None] * width + at[None, :]
        mask = is_row[:, None] & is_column[None, :]
        total = tl.load(into, mask=mask, other=0.0).to(tl.float32) + sums
        tl.store(into, total.to(out.dtype.element_ty), mask=mask)


def lora_add_gpu(x: torch.Tensor, out: torch.Tensor, rows: LoraRows, layer: LoraLayer) -> None:
    """Computes lora_add_reference, with adapters whose elements have the type of x. Those that have more than deltas
    are computed by torch."""
    num_tokens, width = out.shape
    if x.shape != (num_tokens, layer.in_features) or width != sum(layer.widths):
        raise ValueError(f"x is {tuple(x.shape)}, out {tuple(out.shape)}, the layer {layer.widths}")
    if not (x.is_contiguous() and out.is_contiguous()):
        raise ValueError("x and out must be contiguous")
    if not num_tokens:
        return
    if not all(weights is None or weights.is_delta for weights in layer.slots):
        lora_add_reference(x, out, rows, layer)
        return
    tiles, num_slots, line = triton.cdiv(num_tokens, _ROWS), len(layer.slots), layer.table.shape[1]
    y = torch.empty(num_tokens, layer.max_ranks, dtype=torch.float32, device=x.device)
    _shrink[(tiles, triton.cdiv(layer.max_ranks, _RANKS), num_slots)](
        x, y, rows.tokens, rows.starts, layer.table, line, layer.in_features, layer.max_ranks,
        ROWS=_ROWS, RANKS=_RANKS, DEPTH=_DEPTH, **dependent(),
    )  # fmt: skip
    panels = sum(triton.cdiv(each, PANEL) for each in layer.widths)
    _expand[(tiles, panels, num_slots)](
        y, out, rows.tokens, rows.starts, layer.table, layer.columns, line, width, layer.max_ranks,
        PARTS=len(layer.widths), ROWS=_ROWS, RANKS=_RANKS, PANEL=PANEL, **dependent(),
    )  # fmt: skip
