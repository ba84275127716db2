"""Drawn tokens into the slot tables, so that the next step finds them there, and out to the host.

A token is counted where its sequence has penalties. What cannot be drawn leaves token 0, which nobody is told of.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ROWS = 128  # of one program
_MOST = 32767  # counts are 15 bits; the sixteenth says that the prompt has the token


@triton.jit(do_not_specialize=["num_rows"])
def _finish_step(
    drawn, slots, context_lens, is_sampled, token_table, has_penalties, counts, num_rows, token_stride, count_stride,
    ROWS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = rows < num_rows
    slot = tl.load(slots + rows, mask=is_row, other=-1).to(tl.int64)
    sampled = tl.load(is_sampled + rows, mask=is_row, other=0)
    is_row = is_row & (slot >= 0) & (sampled != 0)
    token = tl.maximum(tl.load(drawn + rows, mask=is_row, other=0), 0)
    position = tl.load(context_lens + rows, mask=is_row, other=0)
    tl.store(token_table + slot * token_stride + position, token, mask=is_row)
    is_counted = is_row & (tl.load(has_penalties + slot, mask=is_row, other=0) != 0)
    place = counts + slot * count_stride + token
    count = tl.load(place, mask=is_counted, other=0)
    is_counted = is_counted & ((count & MOST) < MOST)
    tl.store(place, count + 1, mask=is_counted)


def finish_step(
    drawn: torch.Tensor,
    slots: torch.Tensor,
    context_lens: torch.Tensor,
    is_sampled: torch.Tensor,
    token_table: torch.Tensor,
    has_penalties: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """
    Args:
        drawn: [R] int32, the token of each row; below 0 where none could be drawn.
        slots: [R] int32, -1 for a row that fills up; no slot twice.
        context_lens: [R] int32, which is the position of the drawn token.
        is_sampled: [R] int32, whether the row's token counts: others have not reached the end of their prompts.
        token_table: [S, W] int32, written at (slot, position).
        has_penalties: [S] int32.
        counts: [S, V] int16, how often each token was generated in the low 15 bits, which stop at 32767.
    """
    num_rows = len(slots)
    _finish_step[(triton.cdiv(num_rows, _ROWS),)](
        drawn, slots, context_lens, is_sampled, token_table, has_penalties, counts, num_rows,
        token_table.stride(0), counts.stride(0), ROWS=_ROWS, MOST=_MOST, num_warps=4,
    )  # fmt: skip


def finish_step_reference(
    drawn: torch.Tensor,
    slots: torch.Tensor,
    context_lens: torch.Tensor,
    is_sampled: torch.Tensor,
    token_table: torch.Tensor,
    has_penalties: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    for row in ((slots >= 0) & (is_sampled != 0)).nonzero()[:, 0].tolist():
        slot, token = int(slots[row]), max(int(drawn[row]), 0)
        token_table[slot, int(context_lens[row])] = token
        if has_penalties[slot] and int(counts[slot, token]) & _MOST < _MOST:
            counts[slot, token] += 1
