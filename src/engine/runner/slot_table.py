"""SlotTable: the runner's copy of the state of every running sequence, by slot: token ids, lengths, block tables.

A StepPlan contains only what changed. The newest token of a decode row is here before it is in the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..api import PoolingParams
from ..sampling.sampling_table import SamplingTable
from ..step.plan import Int32, StepPlan
from .slot_columns import SLOT_COLUMNS, SlotColumn

Int64 = npt.NDArray[np.int64]
Slots = Int32 | Int64
_NO_INDICES: Int64 = np.empty(0, np.int64)


class SlotTable:
    def __init__(
        self,
        num_slots: int,
        max_model_len: int,
        block_size: int,
        sampling: SamplingTable,
        num_groups: int = 1,
        columns: Sequence[SlotColumn] = SLOT_COLUMNS,
        whole_tasks: frozenset[str] = frozenset(),
        first_tasks: frozenset[str] = frozenset(),
    ) -> None:
        """
        num_groups: of layers, each with its own block table.
        whole_tasks: whose heads need the hidden states of all tokens.
        first_tasks: whose heads need that of the first token. Others need that of the last one.
        """
        self.block_size = block_size
        self.sampling = sampling
        # One column more than the context: the token that ends a full sequence is stored and never computed.
        # Zero pages that are never written take no memory, so the unused context of a short sequence is free.
        self.token_ids = np.zeros((num_slots, max_model_len + 1), np.int32)
        self.num_tokens = np.zeros(num_slots, np.int64)
        self._columns = [column for column in columns if column.on_host]
        self.columns = {column.name: np.zeros(num_slots, column.dtype) for column in self._columns}
        self.num_prompt_tokens = self.columns["num_prompt_tokens"]
        self.pooled: dict[int, PoolingParams] = {}  # by slot, of the sequences whose tokens are not sampled
        self.whole_tasks, self.first_tasks = whole_tasks, first_tasks
        self.block_ids = np.zeros((num_groups, num_slots, -(-max_model_len // block_size)), np.int32)
        self.num_blocks = np.zeros(num_slots, np.int64)
        self._flat_block_ids: Int32 = self.block_ids.reshape(-1)
        self._group_starts: Int64 = np.arange(num_groups)[:, None] * self.block_ids[0].size

    def apply(self, plan: StepPlan) -> tuple[Int64, Int32]:
        """Applies the changes since the previous plan: released slots, admissions, forced tokens, drafts, new
        blocks, in this order. Drafts are written after the known tokens, and are not counted.

        Returns the indices of new blocks in a flattened block table, and their ids, [n, groups], without the
        blocks of admissions.
        """
        for slot in plan.released_slots:
            self.sampling.release(slot)
            self.pooled.pop(slot, None)
        for admission in plan.admissions:
            slot, token_ids = admission.slot, admission.token_ids
            self.token_ids[slot, : len(token_ids)] = token_ids
            self.num_tokens[slot] = len(token_ids)
            for table, block_ids in zip(self.block_ids, admission.block_ids, strict=True):
                table[slot, : len(block_ids)] = block_ids
            self.num_blocks[slot] = len(admission.block_ids[0])
            self.pooled.pop(slot, None)
            if isinstance(task := admission.inputs.task, PoolingParams):
                self.pooled[slot] = task
                self.sampling.admit_pooled(slot)
            else:
                self.sampling.admit(slot, task, admission.seed, token_ids, admission.num_prompt_tokens)
            for column in self._columns:
                self.columns[column.name][slot] = column.value(admission, self.sampling)
        for slot, token_ids in plan.forced:
            start = self.num_tokens[slot]
            self.token_ids[slot, start : start + len(token_ids)] = token_ids
            self.num_tokens[slot] += len(token_ids)
            self.sampling.take_forced(slot, token_ids)
        for slot, token_ids in plan.drafts:
            start = self.num_tokens[slot]
            self.token_ids[slot, start : start + len(token_ids)] = token_ids
        if not len(plan.block_ids):
            return _NO_INDICES, plan.block_ids
        return self._append_blocks(plan.block_slots, plan.block_ids)

    def _append_blocks(self, slots: Int32, block_ids: Int32) -> tuple[Int64, Int32]:
        """A slot may get several blocks; their order is kept."""
        counts = np.bincount(slots, minlength=len(self.num_blocks))
        rank: Int64 | int = 0
        if counts.max() > 1:
            order = np.argsort(slots, kind="stable")
            slots, block_ids = slots[order], block_ids[order]
            rank = np.arange(len(slots)) - (np.cumsum(counts) - counts)[slots]
        indices = _flat(self.block_ids[0], slots, self.num_blocks[slots] + rank)
        self._flat_block_ids[indices + self._group_starts] = block_ids.T
        self.num_blocks += counts
        return indices, block_ids

    def append(self, slots: Slots, token_ids: npt.NDArray[np.int32], num_drafts: Int32 | int = 0) -> None:
        """Appends one sampled token to each of these slots, after this number of its drafts, which are known then."""
        lengths = self.num_tokens[slots] + num_drafts
        self.token_ids.reshape(-1)[_flat(self.token_ids, slots, lengths)] = token_ids
        self.num_tokens[slots] = lengths + 1

    def tokens_at(self, slots: Slots, positions: Int64) -> npt.NDArray[np.int32]:
        return self.token_ids.reshape(-1).take(_flat(self.token_ids, slots, positions))

    def blocks_at(self, slots: Slots, indices: Int64) -> npt.NDArray[np.int32]:
        """The block ids at these indices of the slots' block tables, [groups, n]."""
        return self._flat_block_ids.take(_flat(self.block_ids[0], slots, indices) + self._group_starts)


def _flat(table: npt.NDArray[np.int32], slots: Slots, columns: Int64) -> Int64:
    """Indices into the flattened table: numpy indexing with one array is five times as fast as with two."""
    return slots * np.int64(table.shape[1]) + columns
