"""SlotArena: the state of every running sequence on the device, by slot, at fixed addresses that graphs can use.

Tokens, block tables and sampling parameters are in one allocation of 32-bit elements, so all changes of a plan are sent
as indices and values in one copy. Sampled tokens are written by the device itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ....config.memory.gpu_reserve import SAMPLING_BYTES
from ...kernels.gpu.finish_step import MOST
from ...kernels.gpu.sample_row import SamplingColumns
from ...sampling.sampling_table import SamplingTable
from ...step.plan import Int32, StepPlan
from ..slot_columns import SLOT_COLUMNS, SlotColumn
from .staging import Upload

Int64 = npt.NDArray[np.int64]
_STAGED = 1 << 16  # changes in one copy, which is a prompt of that number of tokens
IN_PROMPT = np.int16(-32768)


def arena_bytes(num_slots: int, max_model_len: int, block_size: int, vocab_size: int, num_groups: int = 1) -> int:
    """Bytes of the tables of `num_slots` slots. num_groups: of layers."""
    columns = sum(column.on_device for column in SLOT_COLUMNS)
    elements = max_model_len + 1 + num_groups * -(-max_model_len // block_size) + columns
    return num_slots * (4 * elements + SAMPLING_BYTES * vocab_size)


class SlotArena:
    def __init__(
        self,
        num_slots: int,
        max_model_len: int,
        block_size: int,
        vocab_size: int,
        device: torch.device,
        num_groups: int = 1,
        columns: Sequence[SlotColumn] = SLOT_COLUMNS,
    ) -> None:
        """num_groups: of layers, each with its own block table."""
        self._columns = [column for column in columns if column.on_device]
        tables = [f"block_ids {group}" for group in range(num_groups)]
        max_blocks = -(-max_model_len // block_size)
        widths = {
            "token_ids": max_model_len + 1,
            **dict.fromkeys(tables, max_blocks),
            **{column.name: 1 for column in self._columns},
        }
        starts = np.cumsum([0, *(num_slots * width for width in widths.values())])
        self._elements = torch.zeros(int(starts[-1]), dtype=torch.int32, device=device)
        self._starts: dict[str, int] = dict(zip(widths, starts.tolist(), strict=False))
        self._widths = widths

        def table(name: str) -> torch.Tensor:
            return self._elements[self._starts[name] :][: num_slots * widths[name]].view(num_slots, widths[name])

        self.token_ids = table("token_ids")
        self.block_ids = [table(name) for name in tables]  # by group, [slots, blocks]
        self._block_starts = np.array([self._starts[name] for name in tables])
        self.columns = {
            column.name: table(column.name)[:, 0].view(torch.float32 if column.dtype is np.float32 else torch.int32)
            for column in self._columns
        }
        by_token = {
            "bias": torch.zeros(num_slots, vocab_size, device=device),
            "counts": torch.zeros(num_slots, vocab_size, dtype=torch.int16, device=device),
        }
        known = self.columns | by_token
        self.sampling = SamplingColumns(**{name: known[name] for name in SamplingColumns._fields})
        self._changes = torch.zeros(3 * _STAGED, dtype=torch.int32, device=device)
        self._upload = Upload(self._changes)
        self._ends_later: dict[
            int, tuple[int, Int64]
        ] = {}  # slot -> length at which it may end, ids forbidden until then

    def apply(self, plan: StepPlan, table: SamplingTable, new_indices: Int64, new_block_ids: Int32) -> None:
        """Applies the changes since the previous plan.

        table: with the plan's admissions already in it.
        new_indices, new_block_ids: what SlotTable.apply returned for the plan.
        """
        for slot in plan.released_slots:
            self._ends_later.pop(slot, None)
        if plan.admissions:
            changes = _Changes()
            for admission in plan.admissions:
                slot, token_ids = admission.slot, admission.token_ids
                changes.add(self._at("token_ids", slot), token_ids)
                for group, block_ids in enumerate(admission.block_ids):
                    changes.add(self._at(f"block_ids {group}", slot), _valid(block_ids))
                for column in self._columns:
                    dtype = np.float32 if column.dtype is np.float32 else np.int32
                    value = np.array([column.value(admission, table)], dtype)
                    changes.add(self._at(column.name, slot), value.view(np.int32))
                self._admit_rows(slot, table, token_ids, admission.num_prompt_tokens)
            self._send(*changes.joined())
        if len(new_indices):
            indices = new_indices[:, None] + self._block_starts
            self._send(indices.ravel(), _valid(new_block_ids).ravel())
        if self._ends_later:
            self._allow_ends(plan, table)

    def write_tokens(self, slots: Int64, positions: Int64, token_ids: Int32) -> None:
        """Stores tokens that the host sampled."""
        self._send(self._starts["token_ids"] + slots * self._widths["token_ids"] + positions, token_ids)

    def write_forced(self, slot: int, start: int, token_ids: list[int], *, is_counted: bool) -> None:
        """Stores tokens that follow without being sampled, from position `start` on."""
        positions = np.arange(start, start + len(token_ids))
        self.write_tokens(np.full(len(token_ids), slot), positions, np.array(token_ids, np.int32))
        if is_counted:
            counts = self.sampling.counts[slot]
            ids, more = (torch.from_numpy(each).to(counts.device) for each in np.unique(token_ids, return_counts=True))
            known = counts[ids]
            counts[ids] = ((known & MOST) + more).clamp(max=MOST).to(counts.dtype) | (known & int(IN_PROMPT))

    def count(self, slot: int, token_ids: Int32, num_prompt_tokens: int) -> None:
        """Computes the counts of a sequence with penalties, from all of its tokens."""
        vocab_size = self.sampling.counts.shape[1]
        counts = np.bincount(token_ids[num_prompt_tokens:], minlength=vocab_size).clip(max=MOST).astype(np.int16)
        counts[token_ids[:num_prompt_tokens]] |= IN_PROMPT
        self.sampling.counts[slot] = torch.from_numpy(counts).to(self.sampling.counts.device)

    def _at(self, name: str, slot: int) -> int:
        return self._starts[name] + slot * self._widths[name]

    def _admit_rows(self, slot: int, table: SamplingTable, token_ids: list[int], num_prompt_tokens: int) -> None:
        """Fills the sequence's rows of the tables as wide as the vocabulary, if it uses them."""
        if table.has_penalties[slot]:
            self.count(slot, np.array(token_ids, np.int32), num_prompt_tokens)
        if slot in table.ending_ids:
            self._ends_later[slot] = int(table.end_allowed_at[slot]), table.ending_ids[slot]
        if table.has_bias[slot] or slot in table.ending_ids:
            self._write_bias(slot, table)

    def _write_bias(self, slot: int, table: SamplingTable) -> None:
        row = self.sampling.bias[slot].zero_()
        if slot in table.allowed:
            row.fill_(-torch.inf)
            row[torch.from_numpy(table.allowed[slot]).to(row.device)] = 0.0
        if slot in table.bias:
            ids, values = table.bias[slot]
            row[torch.from_numpy(ids).to(row.device)] += torch.from_numpy(values).to(row.device)
        if slot in self._ends_later:
            row[torch.from_numpy(self._ends_later[slot][1]).to(row.device)] = -torch.inf

    def _allow_ends(self, plan: StepPlan, table: SamplingTable) -> None:
        """Allows ending tokens from the step at which a sequence reaches min_tokens."""
        lengths = plan.num_computed + plan.num_tokens
        for slot, length in zip(plan.slots.tolist(), lengths.tolist(), strict=True):
            if slot in self._ends_later and length >= self._ends_later[slot][0]:
                del self._ends_later[slot]
                self._write_bias(slot, table)

    def _send(self, indices: Int64, values: Int32) -> None:
        for start in range(0, len(indices), _STAGED):
            part = slice(start, start + _STAGED)
            count = len(indices[part])
            buffer = self._upload.buffer()
            buffer[: 2 * count].view(np.int64)[:] = indices[part]
            buffer[2 * count : 3 * count] = values[part]
            self._upload.send(3 * count)
            at = self._changes[: 2 * count].view(torch.int64)
            self._elements.index_copy_(0, at, self._changes[2 * count : 3 * count])


def _valid(block_ids: Sequence[int] | Int32) -> Int32:
    """Block ids, with 0 for each block that a group does not have: kernels may load its values and mask them."""
    return np.maximum(np.asarray(block_ids, np.int32), 0)


class _Changes:
    """Indices into the arena, and the values to store there."""

    def __init__(self) -> None:
        self._indices: list[Int64] = [np.empty(0, np.int64)]
        self._values: list[Int32] = [np.empty(0, np.int32)]

    def add(self, start: int, values: Sequence[int] | Int32) -> None:
        """values: for `start` and the indices that follow it."""
        self._indices.append(np.arange(start, start + len(values)))
        self._values.append(np.asarray(values, np.int32))

    def joined(self) -> tuple[Int64, Int32]:
        return np.concatenate(self._indices), np.concatenate(self._values)
