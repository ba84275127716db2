"""StepLauncher: applies plans to the tables of a device, and queues their steps. All ranks of a model do this alike.

How a step is computed is decided by rank 0 alone, in device_runner.py; it samples, and the other ranks receive the
tokens within the step.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from ....config import Resolved
from ...core.step_plan import StepPlan, StepResult
from ..model_runner import ModelRunner
from .buckets import Buckets, StepShape
from .device_step import DeviceStep, Int64
from .graphs import Graphs
from .slot_arena import SlotArena


class OtherRanks(Protocol):
    """Seen from rank 0: each calls its StepLauncher in the same order."""

    def launch(self, plan: StepPlan, shape: StepShape | None, again: Int64) -> None:
        """Has them apply a plan, and compute its step in this shape; None: on the host. again: rows that are sampled a
        second time."""
        ...

    def capture_next(self) -> None: ...

    def check(self) -> None:
        """Raises if one has ended."""
        ...


class StepLauncher:
    def __init__(self, resolved: Resolved, host: ModelRunner) -> None:
        """host: of this rank, with the model on the device."""
        loaded, scheduler = host.loaded, resolved.scheduler
        slots, model_len, block_size = scheduler.max_num_seqs, resolved.model.max_model_len, resolved.cache.block_size
        self._host, self._table = host, host.slots.sampling
        vocab_size, groups = resolved.model_spec.vocab_size, loaded.cache.groups
        self.arena = SlotArena(slots, model_len, block_size, vocab_size, loaded.device, groups.num_groups)
        self.step = DeviceStep(
            loaded.model,
            loaded.cache,
            self.arena,
            slots,
            scheduler.max_num_batched_tokens,
            model_len,
            block_size,
            loaded.device,
            has_guides=self._table.guides is not None,
            ranks=loaded.ranks,
        )
        self._states = loaded.cache.states
        self.buckets = Buckets(scheduler.cuda_graph_sizes, slots, scheduler.max_num_batched_tokens)
        capture = loaded.kernels.capture if loaded.model.is_capturable else None
        is_alone = loaded.ranks is None
        self.graphs = Graphs(self.step.compute, self.step.send_nothing, capture, can_do_without=is_alone)

    def apply(self, plan: StepPlan) -> None:
        """The changes since the previous plan. Plans must arrive in the scheduler's order."""
        new_indices, new_block_ids = self._host.slots.apply(plan)
        self.arena.apply(plan, self._table, new_indices, new_block_ids)
        for slot, token_ids in plan.forced:
            start = int(self._host.slots.num_tokens[slot]) - len(token_ids)
            is_counted = bool(self._table.has_penalties[slot])
            self.arena.write_forced(slot, start, token_ids, is_counted=is_counted)

    def launch(self, plan: StepPlan, shape: StepShape, again: Int64) -> torch.Tensor:
        """Queues the step of a plan that was applied. Returns the logits of its rows."""
        self.step.send(plan, shape, again)
        if self._states is not None:
            self._states.copy(plan.restored_states)
        self._host.load_blocks(plan)
        return self.graphs.run(shape)

    def sampled_again(self, plan: StepPlan, rows: Int64) -> None:
        """After the second sampling: forced tokens may follow the sampled ones."""
        self._host.slots.num_tokens[plan.slots[rows]] = plan.num_computed[rows] + plan.num_tokens[rows] + 1

    def keep(self, plan: StepPlan) -> None:
        """Last of a step: copies of states and blocks, for which the tokens do not wait."""
        if self._states is not None:
            self._states.copy(plan.kept_states)
        self._host.save_blocks(plan)

    def compute_on_host(self, plan: StepPlan) -> StepResult:
        """The step of a plan that was applied, by ModelRunner. Waits for all steps before it."""
        slots, host = plan.slots.astype(np.int64), self._host.slots
        lengths = plan.num_computed.astype(np.int64) + plan.num_tokens
        known = self.arena.token_ids[:, : lengths.max()]
        host.token_ids[slots, : lengths.max()] = known[torch.from_numpy(slots).to(known.device)].cpu()
        sampled = np.flatnonzero(plan.is_sampled)
        host.num_tokens[slots[sampled]] = lengths[sampled]
        penalised = [row for row in sampled.tolist() if self._table.has_penalties[slots[row]]]
        for row in penalised:
            generated = host.token_ids[slots[row], host.num_prompt_tokens[slots[row]] : lengths[row]]
            self._table.counts[slots[row]] = np.bincount(generated, minlength=self._table.vocab_size)
        result = self._host.compute(plan)
        self.arena.write_tokens(slots[sampled], lengths[sampled], result.token_ids[sampled])
        for row in penalised:
            tokens = host.token_ids[slots[row], : lengths[row] + 1]
            self.arena.count(int(slots[row]), tokens, int(host.num_prompt_tokens[slots[row]]))
        return result

    def request_graphs(self) -> int:
        """Of all shapes. Returns the number of those to capture before the first request: decode steps on the sampler's
        fast path, and one with the full sampler, so that its kernels are compiled."""
        shapes = self.buckets.all_shapes()
        hot = [shape for shape in shapes if shape.is_decode and (shape.is_fast_path or shape.num_rows == 1)]
        self.graphs.request(hot)
        self.graphs.request(shape for shape in shapes if shape not in hot)
        return len(hot)
