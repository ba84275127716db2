"""DeviceInputs: the tables of running sequences on the host and on the device, which kernels read by slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...step.plan import StepPlan
from ...step.result import StepResult
from ..slot_table import SlotTable
from ..step_features import StepFeature, flags_of
from .device_step import Int64
from .slot_arena import SlotArena


class DeviceInputs:
    def __init__(self, slots: SlotTable, arena: SlotArena, features: Sequence[StepFeature] = ()) -> None:
        self.slots, self._arena, self._features = slots, arena, features
        self._sampling = slots.sampling

    def apply(self, plan: StepPlan) -> None:
        """Apply the changes since the previous plan. Plans must arrive in the scheduler's order."""
        new_indices, new_block_ids = self.slots.apply(plan)
        self._arena.apply(plan, self._sampling, new_indices, new_block_ids)
        for slot, token_ids in plan.forced:
            start = int(self.slots.num_tokens[slot]) - len(token_ids)
            is_counted = bool(self._sampling.has_penalties[slot])
            self._arena.write_forced(slot, start, token_ids, is_counted=is_counted)

    def flags(self, plan: StepPlan) -> int:
        """The flags of the features of an applied plan's step."""
        return flags_of(self._features, plan, self.slots)

    def sampled_again(self, plan: StepPlan, rows: Int64) -> None:
        """Update the lengths after the second sampling: forced tokens may follow the sampled ones."""
        self.slots.num_tokens[plan.slots[rows]] = plan.num_computed[rows] + plan.num_tokens[rows] + 1

    def to_host(self, plan: StepPlan) -> None:
        """Copy the tokens of the plan's sequences to the host's table. Waits for all steps before it."""
        slots, host, sampling = plan.slots.astype(np.int64), self.slots, self._sampling
        lengths = _lengths(plan)
        known = self._arena.token_ids[:, : lengths.max()]
        host.token_ids[slots, : lengths.max()] = known[torch.from_numpy(slots).to(known.device)].cpu()
        rows = plan.output_rows
        host.num_tokens[slots[rows]] = lengths[rows]
        for row in self._penalised(plan):
            generated = host.token_ids[slots[row], host.num_prompt_tokens[slots[row]] : lengths[row]]
            sampling.counts[slots[row]] = np.bincount(generated, minlength=sampling.vocab_size)

    def to_device(self, plan: StepPlan, result: StepResult) -> None:
        """Copy the tokens that the host has sampled to the device's tables."""
        slots, host, rows, lengths = plan.slots.astype(np.int64), self.slots, result.rows(plan), _lengths(plan)
        self._arena.write_tokens(slots[rows], lengths[rows], result.token_ids)
        for row in self._penalised(plan):
            tokens = host.token_ids[slots[row], : lengths[row] + 1]
            self._arena.count(int(slots[row]), tokens, int(host.num_prompt_tokens[slots[row]]))

    def _penalised(self, plan: StepPlan) -> list[int]:
        """The rows with an output whose sequences have penalties."""
        return [row for row in plan.output_rows.tolist() if self._sampling.has_penalties[plan.slots[row]]]


def _lengths(plan: StepPlan) -> Int64:
    return plan.num_computed.astype(np.int64) + plan.num_tokens
