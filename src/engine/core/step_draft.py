"""StepDraft: a step while it is being planned, and its StepPlan."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ..step.plan import NO_COPIES, AdapterLoad, Admission, BlockCopy, BlockLoad, Int32, Int64, StepPlan
from .request import Request
from .slot_columns import SlotColumns
from .steps_in_flight import StepInFlight

_NO_SLOTS: Int64 = np.empty(0, np.int64)


@dataclass(slots=True)
class PrefillRow:
    request: Request
    start: int  # tokens computed before the step
    end: int  # and after it
    stop: int  # where the step must not go beyond: known tokens, or where the chunk is cut for the sake of its state
    is_new: bool  # admitted in this step: its blocks are part of the admission

    @property
    def is_cut(self) -> bool:
        return self.end == self.stop < len(self.request.token_ids)


@dataclass(slots=True)
class StepDraft:
    num_groups: int  # of layers
    decodes: list[Request] = field(default_factory=list)
    decode_slots: Int64 = field(default_factory=lambda: _NO_SLOTS)
    decode_outputs: Int32 | None = None  # of each, one more than its drafts, which have blocks already; None: one
    drafts: list[tuple[int, list[int]]] = field(default_factory=list)  # slots, and tokens that may follow
    prefills: list[PrefillRow] = field(default_factory=list)
    block_slots: list[int] = field(default_factory=list)  # blocks added to sequences that ran before this step
    block_ids: list[int] = field(default_factory=list)  # for each of these, one of each group of layers
    restored_states: list[tuple[int, int]] = field(default_factory=list)  # places: sequence_states.py
    kept_states: list[tuple[int, int]] = field(default_factory=list)
    unnamed_states: list[tuple[int, int]] = field(default_factory=list)  # of the kept ones, decode rows and places
    loads: list[BlockLoad] = field(default_factory=list)
    adapter_loads: list[AdapterLoad] = field(default_factory=list)
    saves: dict[bytes, BlockCopy] = field(default_factory=dict)  # by hash: requests may share a prefix
    lacks_blocks: bool = False  # nothing is admitted

    @property
    def num_decode_tokens(self) -> int:
        return len(self.decodes) if self.decode_outputs is None else int(self.decode_outputs.sum())

    def add_blocks(self, slot: int, block_ids: list[int]) -> None:
        """block_ids: for each position, one of each group."""
        self.block_slots += [slot] * (len(block_ids) // self.num_groups)
        self.block_ids += block_ids

    def commit(self, step: int, columns: SlotColumns) -> StepInFlight:
        """Make the plan, and count its tokens as computed and sampled."""
        slots, requests = self.decode_slots, self.decodes
        num_computed = columns.computed[slots]
        num_tokens = num_outputs = columns.ones[: len(slots)] if self.decode_outputs is None else self.decode_outputs
        if self.decode_outputs is not None:
            columns.is_held[slots[self.decode_outputs > 1]] = True
        if self.prefills:
            rows = self.prefills
            ends = np.array([row.end for row in rows], np.int32)
            starts = np.array([row.start for row in rows], np.int32)
            prefill_slots = np.array([row.request.slot for row in rows], np.int64)
            slots = np.concatenate((slots, prefill_slots))
            num_computed = np.concatenate((num_computed, starts))
            num_tokens = np.concatenate((num_tokens, ends - starts))
            reaches_end = ends == columns.target[prefill_slots]
            num_outputs = np.concatenate((num_outputs, reaches_end.astype(np.int32)))
            requests = requests + [row.request for row in rows]
        plan = StepPlan(
            step=step,
            released_slots=columns.pop_released(),
            admissions=[_admission(row.request) for row in self.prefills if row.is_new],
            block_slots=np.array(self.block_slots, np.int32),
            block_ids=np.array(self.block_ids, np.int32).reshape(len(self.block_slots), self.num_groups),
            slots=slots.astype(np.int32),
            num_computed=num_computed,
            num_tokens=num_tokens,
            num_outputs=num_outputs,
            forced=[_forced(row.request) for row in self.prefills if row.request.num_untold],
            restored_states=_pairs(self.restored_states),
            kept_states=_pairs(self.kept_states),
            loads=self.loads,
            adapter_loads=self.adapter_loads,
            saves=list(self.saves.values()),
            drafts=self.drafts,
        )
        columns.computed[slots] = num_computed + num_tokens
        columns.target[slots] += num_outputs
        columns.last_step[slots] = step
        return StepInFlight(plan, requests, columns.serial[slots], self.unnamed_states)


def _pairs(copies: list[tuple[int, int]]) -> Int32:
    return np.array(copies, np.int32) if copies else NO_COPIES


def _forced(request: Request) -> tuple[int, list[int]]:
    count, request.num_untold = request.num_untold, 0
    return request.slot, request.token_ids[-count:]


def _admission(request: Request) -> Admission:
    inputs, sampling = request.inputs, request.inputs.sampling
    if sampling.prompt_logprobs is not None and request.prompt_logprobs is None:
        inputs = replace(inputs, task=replace(sampling, prompt_logprobs=None))  # sent before it was preempted
    return Admission(
        slot=request.slot,
        inputs=inputs,
        generated=request.token_ids[request.num_prompt_tokens :],
        block_ids=[list(table) for table in request.block_ids],
        seed=request.seed,
        adapter_slot=request.adapter_slot,
        request_id=request.request_id,
    )
