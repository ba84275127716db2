"""The last tokens of each sequence, kept in rings: token t has row t % rows of its sequence's ring."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..recurrent_step import RecurrentStep
from .attention_plan import row_of
from .launch import dependent, wait

_BLOCK = 1024  # columns of a program


@triton.jit
def load_token(query_start, context_lens, seq_slots, token, num_rows):
    """A token's row, the first token of the row, the slot (-1 for padding), and positions minus tokens in the row."""
    row = row_of(query_start, num_rows, token, 1)
    start, end = tl.load(query_start + row), tl.load(query_start + row + 1)
    slot = tl.where(token < end, tl.load(seq_slots + row), -1)
    return row, start, end, slot.to(tl.int64), tl.load(context_lens + row) - end


@triton.jit(do_not_specialize=["num_rows"])
def _keep_rows(
    values, ring, query_start, context_lens, seq_slots, num_rows, stride, slot_stride, ring_stride,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    token = tl.program_id(0)
    _, _, end, slot, offset = load_token(query_start, context_lens, seq_slots, token, num_rows)
    if (slot >= 0) & (end - token <= ROWS):
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        is_there = columns < COLUMNS
        value = tl.load(values + token.to(tl.int64) * stride + columns, mask=is_there)
        to = ring + slot * slot_stride + (token + offset) % ROWS * ring_stride
        tl.store(to + columns, value.to(ring.dtype.element_ty), mask=is_there)


def keep_rows(values: torch.Tensor, ring: torch.Tensor, step: RecurrentStep) -> None:
    """Writes the last of each row's tokens into the ring of its slot.

    values: [T, columns]. ring: [slots, rows, columns]. Both may have any stride but that of columns, which is 1.
    """
    num_tokens, columns = values.shape
    if num_tokens and len(step.seq_slots):
        block = min(_BLOCK, triton.next_power_of_2(columns))
        _keep_rows[(num_tokens, triton.cdiv(columns, block))](
            values, ring, step.query_start, step.context_lens, step.seq_slots, len(step.seq_slots), values.stride(0),
            ring.stride(0), ring.stride(1),
            COLUMNS=columns, ROWS=ring.shape[1], BLOCK=block, num_warps=4, **dependent(),
        )  # fmt: skip
