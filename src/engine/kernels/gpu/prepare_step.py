"""Builds a step's tensors from the slot tables, on the device: the host sends a few values for each row.

One launch; its first programs are for rows, the others for ranges of tokens. Padding rows get no context, padding
tokens a slot of -1, which nothing is written to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .token_rows import rows_of_tokens

_TOKENS = 256  # of one program
_BLOCKS = 256  # entries of a block table in one iteration


@dataclass(frozen=True, slots=True)
class StepRows:
    """What the host sends for R rows. Padding rows have slot -1 and no tokens, and come last."""

    slots: torch.Tensor  # [R] int32
    num_computed: torch.Tensor  # [R] int32, tokens in the cache before the step
    query_start: torch.Tensor  # [R + 1] int32, the first token of each row in the step


@dataclass(frozen=True, slots=True)
class StepTensors:
    """The tensors of a step: R rows, T tokens."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    slot_mapping: torch.Tensor  # [T] int64, block id * block_size + offset; -1 after the last row's tokens
    context_lens: torch.Tensor  # [R] int32
    block_tables: torch.Tensor  # [R, B] int32; entries after the row's context are not changed
    last_tokens: torch.Tensor  # [R] int64, index of each row's last token in the step; -1 if it has none


@triton.jit(do_not_specialize=["num_rows", "num_tokens", "first_width"])  # one compiled kernel for steps of all sizes
def _prepare_step(
    slots, num_computed, query_start, token_table, block_table,
    token_ids, positions, slot_mapping, context_lens, block_tables, last_tokens,
    num_rows, num_tokens, first_width, token_stride, block_stride, table_stride,
    BLOCK_SIZE: tl.constexpr, TOKENS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if program < num_rows:
        slot = tl.load(slots + program).to(tl.int64)
        end = tl.load(query_start + program + 1)
        count = end - tl.load(query_start + program)
        length = tl.where(slot >= 0, tl.load(num_computed + program) + count, 0)
        tl.store(context_lens + program, length)
        tl.store(last_tokens + program, tl.where(count > 0, end - 1, -1).to(tl.int64))
        held = tl.cdiv(length, BLOCK_SIZE)
        for begin in range(0, held, BLOCKS):
            places = begin + tl.arange(0, BLOCKS)
            found = tl.load(block_table + slot * block_stride + places, mask=places < held, other=0)
            tl.store(block_tables + program.to(tl.int64) * table_stride + places, found, mask=places < held)
    else:
        tokens = (program - num_rows) * TOKENS + tl.arange(0, TOKENS)
        is_token = tokens < num_tokens
        rows = rows_of_tokens(query_start, tokens, num_rows, first_width)
        is_real = is_token & (rows < num_rows)
        of_slots = tl.load(slots + rows, mask=is_real, other=-1).to(tl.int64)
        is_real = is_real & (of_slots >= 0)
        start = tl.load(query_start + rows, mask=is_real, other=0)
        position = (tl.load(num_computed + rows, mask=is_real, other=0) + tokens - start).to(tl.int64)
        position = tl.where(is_real, position, 0)
        token = tl.load(token_table + of_slots * token_stride + position, mask=is_real, other=0)
        block = tl.load(block_table + of_slots * block_stride + position // BLOCK_SIZE, mask=is_real, other=0).to(
            tl.int64
        )
        place = block * BLOCK_SIZE + position % BLOCK_SIZE
        tl.store(token_ids + tokens, token.to(tl.int64), mask=is_token)
        tl.store(positions + tokens, position, mask=is_token)
        tl.store(slot_mapping + tokens, tl.where(is_real, place, -1), mask=is_token)


def prepare_step(
    rows: StepRows, token_table: torch.Tensor, block_table: torch.Tensor, block_size: int, out: StepTensors
) -> None:
    """Fills `out`.

    token_table: [S, W] int32, the tokens of each slot's sequence. block_table: [S, B] int32.
    """
    num_rows, num_tokens = len(rows.slots), len(out.token_ids)
    _prepare_step[(num_rows + triton.cdiv(num_tokens, _TOKENS),)](
        rows.slots, rows.num_computed, rows.query_start, token_table, block_table,
        out.token_ids, out.positions, out.slot_mapping, out.context_lens, out.block_tables, out.last_tokens,
        num_rows, num_tokens, triton.next_power_of_2(num_rows),
        token_table.stride(0), block_table.stride(0), out.block_tables.stride(0),
        BLOCK_SIZE=block_size, TOKENS=_TOKENS, BLOCKS=_BLOCKS, num_warps=4,
    )  # fmt: skip
