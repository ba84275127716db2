"""Writes sampled tokens into the slot tables, where the next step reads them.

A token is counted if its sequence has penalties. If no token can be sampled, token 0 is written and not reported.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ROWS = 128  # of one program
MOST = 32767  # counts have 15 bits; the sixteenth is set for tokens of the prompt


@triton.jit(do_not_specialize=["num_rows"])
def _finish_step(
    token_ids, slots, context_lens, is_sampled, token_table, has_penalties, counts,
    num_rows, token_stride, count_stride, ROWS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = rows < num_rows
    slot = tl.load(slots + rows, mask=is_row, other=-1).to(tl.int64)
    sampled = tl.load(is_sampled + rows, mask=is_row, other=0)
    is_row = is_row & (slot >= 0) & (sampled != 0)
    token = tl.maximum(tl.load(token_ids + rows, mask=is_row, other=0), 0)
    position = tl.load(context_lens + rows, mask=is_row, other=0)
    tl.store(token_table + slot * token_stride + position, token, mask=is_row)
    is_counted = is_row & (tl.load(has_penalties + slot, mask=is_row, other=0) != 0)
    place = counts + slot * count_stride + token
    count = tl.load(place, mask=is_counted, other=0)
    is_counted = is_counted & ((count & MOST) < MOST)
    tl.store(place, count + 1, mask=is_counted)


def finish_step(
    token_ids: torch.Tensor,
    slots: torch.Tensor,
    context_lens: torch.Tensor,
    is_sampled: torch.Tensor,
    token_table: torch.Tensor,
    has_penalties: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """
    Args:
        token_ids: [R] int32, the token of each row; below 0 where none could be sampled.
        slots: [R] int32, -1 for a padding row; no slot twice.
        context_lens: [R] int32, which is the position of the sampled token.
        is_sampled: [R] int32, 0 for rows that have not reached the end of their prompts: nothing is written.
        token_table: [S, W] int32, written at (slot, position).
        has_penalties: [S] int32.
        counts: [S, V] int16, how often each token was generated in the low 15 bits, which stop at 32767.
    """
    num_rows = len(slots)
    _finish_step[(triton.cdiv(num_rows, _ROWS),)](
        token_ids, slots, context_lens, is_sampled, token_table, has_penalties, counts, num_rows,
        token_table.stride(0), counts.stride(0), ROWS=_ROWS, MOST=MOST, num_warps=4,
    )  # fmt: skip
