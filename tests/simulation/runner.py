"""FakeRunner: executes plans from their content alone, and checks that the real runner's tables agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stoker.engine.api import PoolingParams, SamplingParams
from stoker.engine.core import SchedulerSettings
from stoker.engine.runner.slot_table import SlotTable
from stoker.engine.runner.step_input import PooledTexts, build_step_input, logit_tokens
from stoker.engine.sampling.sampling_table import SamplingTable
from stoker.engine.step import StepPlan, StepResult
from stoker.engine.step.plan import NO_ADAPTER, Int32

from .stores import Stores
from .truth import (
    CURSE,
    CURSED_ID,
    VOCAB,
    WHOLE_TASKS,
    fingerprint,
    fingerprints,
    forced_tokens,
    is_cursed,
    logprobs_of,
    sampled_token,
    vectors_of,
)

CPU = torch.device("cpu")


@dataclass(slots=True)
class Slot:
    token_ids: list[int]
    marks: np.ndarray  # [max_model_len + 1] int64: fingerprints by position, for known tokens
    block_ids: list[list[int]]  # by group of layers
    num_prompt: int
    sampling: SamplingParams
    seed: int
    adapter: tuple[int, str] | None  # its slot and its name
    pooling: PoolingParams | None

    def expect(self, token_ids: list[int]) -> None:
        """Drafts: their cells are written, and overwritten later."""
        for position, token_id in enumerate(token_ids, len(self.token_ids)):
            self.marks[position] = fingerprint(int(self.marks[position - 1]), token_id)

    def append(self, token_id: int) -> None:
        position = len(self.token_ids)
        self.token_ids.append(token_id)
        self.marks[position] = fingerprint(int(self.marks[position - 1]), token_id)


class FakeRunner:
    def __init__(self, settings: SchedulerSettings, stores: Stores | None = None) -> None:
        self._settings, self._stores = settings, stores
        self.cells = np.zeros((settings.num_blocks, settings.block_size), np.int64)
        self.slots: dict[int, Slot] = {}
        self._adapters: dict[int, str] = {}  # by slot of adapters, the name of what was loaded
        # Of models with recurrent layers: the fingerprint of the tokens that the state at a place was computed from.
        self.states: dict[int, int] = {}
        self._drafted: dict[int, tuple[int, int]] = {}  # slots whose state may be of rejected drafts: start, and end
        self._unsure: set[int] = set()  # slots that a failed step may or may not have changed
        self._nonsense = 0
        sampling = SamplingTable(settings.max_num_seqs, VOCAB, settings.eos_token_ids)
        self._table = SlotTable(
            settings.max_num_seqs,
            settings.max_model_len,
            settings.block_size,
            sampling,
            settings.num_groups,
            whole_tasks=frozenset(task for task, is_whole in WHOLE_TASKS.items() if is_whole),
        )
        # What a group's layers keep of a token differs from what another group's keep.
        self.group_marks = [group * 0x9E3779B97F4A7C1 for group in range(settings.num_groups)]

    def execute(self, plan: StepPlan) -> StepResult:
        self._apply(plan)
        rows = list(zip(plan.slots.tolist(), plan.num_computed.tolist(), plan.num_tokens.tolist(), strict=True))
        drafts = dict(plan.drafts)
        for slot, token_ids in plan.drafts:
            self.slots[slot].expect(token_ids)
        self._check_tables(plan, rows)
        self._copy_states(plan.restored_states)
        for load in plan.loads:
            content = np.frombuffer(load.content, np.int64).reshape(len(load.block_ids), -1)
            self.cells[list(load.block_ids)] = content
        for slot, _, _ in rows:
            adapter = self.slots[slot].adapter
            assert adapter is None or self._adapters[adapter[0]] == adapter[1], f"step {plan.step}: another adapter"
        for slot, start, count in rows:
            self._write(self.slots[slot], start, start + count, len(drafts.get(slot, [])))
            if count > 1:  # a row reads nothing that a later one fills
                self._read(plan, self.slots[slot], start, start + count)
            self._change_state(slot, start, start + count, has_drafts=slot in drafts)
        self._copy_states(plan.kept_states)
        result, token_ids, num_valid = StepResult(np.empty(0, np.int32)), [], np.minimum(plan.num_outputs, 1)
        for row, (slot, start, count) in enumerate(rows):
            state, end = self.slots[slot], start + count
            self._read(plan, state, start, end)
            drafted = drafts.get(slot, [])
            known = end - len(drafted)
            is_sampled = known == len(state.token_ids)
            assert plan.num_outputs[row] == is_sampled * (1 + len(drafted)), f"step {plan.step} row {row}"
            if state.sampling.prompt_logprobs is not None and start + 1 < state.num_prompt:
                places = range(start + 1, min(end + 1, state.num_prompt))
                result.prompt_logprobs[row] = [
                    logprobs_of(state.token_ids[place], int(state.marks[place - 1])) for place in places
                ]
            if not is_sampled:
                continue
            if state.pooling is not None:
                token_ids.append(0)
                if state.token_ids[-1] == CURSED_ID:
                    result.errors[row] = CURSE
                whole = any(WHOLE_TASKS[task] for task in state.pooling.tasks)
                assert not (whole and start), "only a part of the tokens has hidden states"
                result.vectors[row] = vectors_of(state.pooling, state.marks[:end].tolist())
                continue
            num_valid[row] = 0
            for expected in (*drafted, None):
                mark = int(state.marks[len(state.token_ids) - 1])
                token_id = sampled_token(mark, state.seed)
                if num_valid[row] and is_cursed(state.sampling, token_id):
                    break  # it fails in the next step
                if state.sampling.logprobs is not None:
                    result.logprobs[len(token_ids)] = logprobs_of(token_id, mark)
                token_ids.append(token_id)
                state.append(token_id)
                num_valid[row] += 1
                if is_cursed(state.sampling, token_id):
                    result.errors[row] = CURSE
                if token_id != expected or row in result.errors:
                    break
            if forced := forced_tokens(state.sampling, int(state.marks[len(state.token_ids) - 1]), state.seed):
                result.forced[row] = forced
        result.token_ids = np.array(token_ids, np.int32)
        if plan.drafts:
            result.num_valid = num_valid
        pooled = [row for row, (slot, *_) in enumerate(rows) if self.slots[slot].pooling is not None]
        sampled = np.setdiff1d(np.flatnonzero(plan.num_outputs), pooled)
        last = np.cumsum(num_valid)[sampled] - 1
        self._table.append(plan.slots[sampled], result.token_ids[last], num_valid[sampled] - 1)
        for save in plan.saves:
            assert self._settings.store is not None
            whole = self.cells[list(save.block_ids)].reshape(-1).data.cast("B")
            self._settings.store.save(save.block_hash, whole, is_for_others=save.is_for_others)
            if self._stores is not None:
                self._stores.saved(save.block_hash, whole)
        return result

    def fail(self, plan: StepPlan, *, is_begun: bool) -> None:
        """Fail in a step: before anything was done, or in the middle, with wrong values in its cells."""
        if is_begun:
            self._apply(plan)
            for slot, start, count in zip(plan.slots, plan.num_computed, plan.num_tokens, strict=True):
                self.states[int(slot)] = -1
                for position in range(start, start + count):
                    block, offset = divmod(position, self._settings.block_size)
                    self._nonsense -= 1
                    for table in self.slots[slot].block_ids:
                        self.cells[table[block], offset] = self._nonsense
            for _, place in plan.kept_states.tolist():
                self.states[place] = -1
        self.doubt(plan)

    def doubt(self, plan: StepPlan) -> None:
        """The scheduler treats the plan as failed, whether it was executed or not."""
        self._unsure.update(plan.released_slots, (admission.slot for admission in plan.admissions))

    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.released_slots:
            released = self.slots.pop(slot, None)
            assert released or slot in self._unsure, f"slot {slot} was released but had no sequence"
            self._unsure.discard(slot)
        self._adapters |= {load.slot: load.ref.name for load in plan.adapter_loads}
        for admission in plan.admissions:
            assert admission.slot not in self.slots, f"slot {admission.slot} was given to two sequences"
            self._drafted.pop(admission.slot, None)
            token_ids = list(admission.token_ids)
            marks = np.zeros(self._settings.max_model_len + 1, np.int64)
            task, scope = admission.inputs.task, admission.inputs.scope
            pooling = task if isinstance(task, PoolingParams) else None
            seed = admission.seed if pooling is None else int(scope.salt)
            marks[: len(token_ids)] = list(fingerprints(seed, token_ids, scope.adapter))
            ref = admission.inputs.adapter
            assert (admission.adapter_slot == NO_ADAPTER) == (ref is None)
            self.slots[admission.slot] = Slot(
                token_ids, marks, [list(table) for table in admission.block_ids], admission.num_prompt_tokens,
                admission.inputs.sampling, seed, None if ref is None else (admission.adapter_slot, ref.name), pooling,
            )  # fmt: skip
        for slot, token_ids in plan.forced:
            state = self.slots[slot]
            for token_id in token_ids:
                expected = sampled_token(int(state.marks[len(state.token_ids) - 1]), state.seed)
                assert token_id == expected, f"slot {slot} is to be continued with a wrong token"
                state.append(token_id)
        for slot, block_ids in zip(plan.block_slots.tolist(), plan.block_ids.tolist(), strict=True):
            for table, block_id in zip(self.slots[slot].block_ids, block_ids, strict=True):
                table.append(block_id)
        self._table.apply(plan)

    def _check_tables(self, plan: StepPlan, rows: list[tuple[int, int, int]]) -> None:
        """The real tables, and the tensors made from them, agree with the plans."""
        drafts = dict(plan.drafts)
        for group, step in enumerate(build_step_input(plan, self._table, CPU)):
            token_ids, positions, places, size = [], [], [], self._settings.block_size
            for row, (slot, start, count) in enumerate(rows):
                state, end = self.slots[slot], start + count
                num_blocks, table = -(-end // size), state.block_ids[group]
                assert self._table.num_blocks[slot] == len(table)
                assert step.block_tables[row, :num_blocks].tolist() == table[:num_blocks]
                token_ids += [*state.token_ids, *drafts.get(slot, [])][start:end]
                positions += range(start, end)
                places += [table[place // size] * size + place % size for place in range(start, end)]
            assert step.token_ids.tolist() == token_ids
            assert step.positions.tolist() == positions
            assert step.slot_mapping.tolist() == places
            assert step.context_lens.tolist() == [start + count for _, start, count in rows]
        wanted = logit_tokens(plan, self._table)
        assert wanted.output_rows.tolist() == plan.output_rows.tolist()
        self._check_pooled(plan, rows, wanted.pooled)

    def _check_pooled(self, plan: StepPlan, rows: list[tuple[int, int, int]], pooled: Sequence[PooledTexts]) -> None:
        """Heads get the last token of each prompt that ends in the step, or all of them."""
        expected: dict[str, dict[int, list[int]]] = {}
        end = 0
        for row, (slot, _, count) in enumerate(rows):
            end += count
            params = self.slots[slot].pooling
            for task in () if params is None or not plan.num_outputs[row] else params.tasks:
                first = end - count if WHOLE_TASKS[task] else end - 1
                expected.setdefault(task, {})[row] = list(range(first, end))
        found = {
            each.task: dict(zip(each.rows.tolist(), map(list, np.split(each.tokens, each.starts[1:-1])), strict=True))
            for each in pooled
        }
        assert found == expected

    def _write(self, state: Slot, start: int, end: int, num_drafts: int) -> None:
        assert end <= len(state.token_ids) + num_drafts, "a token that is not known was to be computed"
        positions = np.arange(start, end)
        for table, mark in zip(state.block_ids, self.group_marks, strict=True):
            blocks = np.array(table)[positions // self._settings.block_size]
            assert (blocks >= 0).all(), "a row writes to no block"
            self.cells[blocks, positions % self._settings.block_size] = state.marks[start:end] ^ mark

    def _change_state(self, slot: int, start: int, end: int, *, has_drafts: bool) -> None:
        """A state is not in blocks: a row without computed tokens begins a new one, another continues its slot's.

        The row after one with drafts begins where its accepted tokens end, and their state is found again.
        """
        marks, settings = self.slots[slot].marks, self._settings
        # Without kept states, tokens of others count as computed: a model without recurrent layers.
        has_states = settings.num_kept_states or not settings.enable_prefix_caching
        if (drafted := self._drafted.pop(slot, None)) is not None and has_states:
            first, last = drafted
            assert first < start <= last, f"slot {slot}: tokens {first} to {last} were computed, {start} are counted"
            self.states[slot] = int(marks[start - 1])
        if has_drafts:
            self._drafted[slot] = start, end
        if start and has_states:
            assert self.states.get(slot) == marks[start - 1], f"slot {slot}: the state of another prefix"
        self.states[slot] = int(marks[end - 1])

    def _copy_states(self, copies: Int32) -> None:
        """From place to place; all are read before one is written, so that their order does not matter."""
        read = [self.states[source] for source, _ in copies.tolist()]
        targets = copies[:, 1].tolist()
        assert len(set(targets)) == len(targets), "two states are copied to one place"
        self.states.update(zip(targets, read, strict=True))

    def _read(self, plan: StepPlan, state: Slot, start: int, end: int) -> None:
        """Each group reads as far back as its window, from the first of the row's tokens."""
        for window, table, mark in zip(self._settings.windows, state.block_ids, self.group_marks, strict=True):
            first = 0 if window is None else max(0, start - window + 1)
            positions = np.arange(first, end)
            blocks = np.array(table)[positions // self._settings.block_size]
            assert (blocks >= 0).all(), f"step {plan.step}: a block within the window of {window} tokens is not there"
            cells = self.cells[blocks, positions % self._settings.block_size]
            wrong = positions[cells != state.marks[first:end] ^ mark]
            assert not len(wrong), f"step {plan.step}: wrong keys and values at positions {wrong.tolist()} of {end}"
