"""Mutation tests of the scheduler: the simulation finds a fault in each of its parts.

A fault replaces one method while its test runs: by a wrong one written here (`Fault`), or by its own code with one
operator or statement changed (`Mutation`). Neither depends on the text of the source; a fault that no longer applies
fails its test. `python -m tests.simulation.survey` runs every mutation.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.slow_cases import slow_but

from stoker.engine.api import CacheScope
from stoker.engine.core import scheduler
from stoker.engine.core.block_events import BlockEvents
from stoker.engine.core.block_hashes import BlockHasher
from stoker.engine.core.block_pool import BlockPool
from stoker.engine.core.drafting import Drafting
from stoker.engine.core.kept_states import KeptStates
from stoker.engine.core.policy import WaitingQueue
from stoker.engine.core.prefill_budget import PrefillBudget
from stoker.engine.core.prefix_cache import PrefixCache
from stoker.engine.core.request import Request
from stoker.engine.core.sequence_blocks import CachedPrefix, SequenceBlocks
from stoker.engine.core.sequence_states import SequenceStates
from stoker.engine.core.sequences import Sequences
from stoker.engine.core.slot_columns import SlotColumns
from stoker.engine.core.step_draft import StepDraft
from stoker.engine.core.step_planner import StepPlanner
from stoker.engine.core.step_results import StepResults
from stoker.engine.core.steps_in_flight import StepsInFlight
from stoker.engine.core.stop import StopRule
from stoker.engine.runner import step_input
from stoker.engine.runner.slot_table import SlotTable
from stoker.engine.step import StepPlan, StepResult

from .ast_mutation import Mutation, NoSuchPlace, dropped_call, dropped_update, swap
from .shrink import shrink
from .simulation import Abort, Add
from .worlds import Broken, World, run_story

MAX_WORLDS = 60
STEPS_PER_WORLD = 300
# Of faults that few worlds show: one that does, which is tried before the others.
KNOWN_WORLDS = {
    "states_stay_kept_after_a_failed_step": 13,
    "the_last_known_token_may_come_from_the_cache": 6,
    "blocks_are_published_before_they_are_full": 6,
    "a_long_prompt_takes_the_whole_budget": 3,
    "states_of_decode_rows_are_kept_late": 4,
    "more_is_reserved_than_there_is": 2,
    "states_of_decode_rows_are_found_before_the_step_is_finished": 3,
    "states_of_decode_rows_get_another_hash": 3,
    "places_of_unwanted_states_are_lost": 3,
}
IN_EVERY_RUN = {  # the others are slow tests
    "shared_blocks_stay_held",
    "hashes_do_not_cover_the_previous_block",
    "sequences_end_one_token_late",
}


@dataclass(frozen=True)
class Fault:
    """`wrong` takes the right method, and then the method's own arguments."""

    owner: type | ModuleType
    name: str
    wrong: Callable[..., Any]

    def attribute(self) -> object:
        right, wrong = getattr(self.owner, self.name), self.wrong
        return lambda *args, **kwargs: wrong(right, *args, **kwargs)


def _shared_blocks_stay_held(right: Any, pool: BlockPool, block_ids: list[int]) -> None:
    right(pool, [block_id for block_id in block_ids if pool.ref_count(block_id) == 1])


def _holders_of_shared_blocks_are_not_counted(right: Any, pool: BlockPool, block_ids: list[int]) -> None:
    right(pool, [block_id for block_id in block_ids if not pool.ref_count(block_id)])


def _blocks_stay_cached_after_a_failed_step(right: Any, pool: BlockPool) -> None:
    pass


def _only_one_direction_of_the_cache_is_forgotten(right: Any, cache: PrefixCache, block_id: int) -> None:
    cache._hashes.pop(block_id)


def _hashes_do_not_cover_the_previous_block(
    right: Any, hasher: BlockHasher, hashes: list[bytes], scope: Any, token_ids: list[int], size: int, num_blocks: int
) -> None:
    for start in range(len(hashes) * size, num_blocks * size, size):
        block = np.array(token_ids[start : start + size], np.int32).tobytes()
        hashes.append(hasher._next(hasher.root(scope), block, b""))


def _salts_are_ignored(right: Any, hasher: BlockHasher, scope: CacheScope) -> bytes:
    return right(hasher, CacheScope())


def _blocks_are_published_before_they_are_full(
    right: Any, blocks: SequenceBlocks, request: Request, num_tokens: int
) -> None:
    more = min(num_tokens + blocks._block_size - 1, len(request.token_ids))
    right(blocks, request, max(more, num_tokens))


def _the_last_known_token_may_come_from_the_cache(right: Any, blocks: SequenceBlocks, request: Request) -> CachedPrefix:
    found, start, stop = right(blocks, request), request.num_blocks, len(request.token_ids) // blocks._block_size
    if len(blocks._windows) > 1 or blocks.states.is_active or not request.reads_cache:
        return found
    request.hash_blocks(blocks.hasher, blocks._block_size, stop)
    return CachedPrefix([blocks.cache.find(request.block_hashes, start, stop)])


def _blocks_are_released_during_the_step_that_writes_them(
    right: Any, steps: StepsInFlight, block_ids: list[int], last_step: int
) -> None:
    right(steps, block_ids, -1)


def _a_long_prompt_takes_the_whole_budget(
    right: Any, budget: PrefillBudget, start: int, known: int, *, has_others: bool, is_whole: bool = False
) -> int:
    return right(budget, start, known, has_others=False, is_whole=is_whole)


def _a_preempted_sequence_loses_its_last_tokens(right: Any, columns: SlotColumns, request: Request) -> None:
    pass


def _the_latest_request_is_served_first(right: Any, queue: WaitingQueue, index: int = 0) -> Request:
    return queue._entries[index][2]


def _aborted_requests_stay_counted_in_the_queue(right: Any, queue: WaitingQueue, request: Request) -> None:
    queue._entries.remove(queue._entry(request))


def _a_chunk_takes_blocks_that_are_not_there(right: Any, blocks: SequenceBlocks, request: Request, end: int) -> int:
    return end


def _more_is_reserved_than_there_is(right: Any, blocks: SequenceBlocks, request: Request) -> None:
    blocks.num_reserved += blocks._windows.count(None)
    request.num_reserved += blocks._windows.count(None)


def _a_state_is_not_restored(
    right: Any, states: SequenceStates, request: Request, block_hash: bytes, num_tokens: int
) -> None:
    states._kept.use(block_hash)


def _a_state_of_another_slot_is_kept(right: Any, states: SequenceStates, draft: StepDraft) -> None:
    right(states, draft)
    slots = [slot for slot, _ in draft.kept_states]
    draft.kept_states = [(slot, place) for slot, (_, place) in zip(slots[::-1], draft.kept_states, strict=True)]


def _states_are_found_whose_place_was_taken(right: Any, kept: KeptStates, block_hash: bytes) -> None:
    kept._free.append(kept._by_hash[block_hash])
    kept._by_hash.move_to_end(block_hash)


def _states_are_kept_without_their_blocks(right: Any, kept: KeptStates, block_hash: bytes) -> None:
    pass


def _states_stay_kept_after_a_failed_step(right: Any, kept: KeptStates) -> None:
    pass


def _states_of_decode_rows_are_found_before_the_step_is_finished(
    right: Any, states: SequenceStates, draft: StepDraft
) -> None:
    """As if the token that is being sampled were known: under the hash of the block before."""
    right(states, draft)
    for index, place in draft.unnamed_states[:]:
        hashes = draft.decodes[index].block_hashes
        if hashes and hashes[-1] not in states._kept and states._cache.has(hashes[-1]):
            states._kept.publish(hashes[-1], place, is_passing=True)
            draft.unnamed_states.remove((index, place))


def _sequences_end_one_token_late(right: Any, rule: StopRule, token_id: int, length: int) -> Any:
    return right(rule, token_id, length - 1)


def _two_new_blocks_of_a_slot_take_one_entry(right: Any, table: SlotTable, slots: Any, block_ids: Any) -> None:
    table.block_ids[slots, table.num_blocks[slots]] = block_ids
    np.add.at(table.num_blocks, slots, 1)


FAULTS: dict[str, Fault | Mutation] = {
    fault.wrong.__name__.strip("_"): fault
    for fault in (
        Fault(BlockPool, "release", _shared_blocks_stay_held),
        Fault(BlockPool, "hold", _holders_of_shared_blocks_are_not_counted),
        Fault(BlockPool, "forget_all", _blocks_stay_cached_after_a_failed_step),
        Fault(PrefixCache, "forget", _only_one_direction_of_the_cache_is_forgotten),
        Fault(BlockHasher, "extend", _hashes_do_not_cover_the_previous_block),
        Fault(BlockHasher, "root", _salts_are_ignored),
        Fault(SequenceBlocks, "publish", _blocks_are_published_before_they_are_full),
        Fault(SequenceBlocks, "find_cached", _the_last_known_token_may_come_from_the_cache),
        Fault(StepsInFlight, "release", _blocks_are_released_during_the_step_that_writes_them),
        Fault(PrefillBudget, "chunk_end", _a_long_prompt_takes_the_whole_budget),
        Fault(SlotColumns, "read_tail", _a_preempted_sequence_loses_its_last_tokens),
        Fault(WaitingQueue, "peek", _the_latest_request_is_served_first),
        Fault(WaitingQueue, "remove", _aborted_requests_stay_counted_in_the_queue),
        Fault(SequenceBlocks, "reachable_end", _a_chunk_takes_blocks_that_are_not_there),
        Fault(SequenceBlocks, "reserve_again", _more_is_reserved_than_there_is),
        Fault(SequenceStates, "restore", _a_state_is_not_restored),
        Fault(SequenceStates, "complete", _a_state_of_another_slot_is_kept),
        Fault(SequenceStates, "complete", _states_of_decode_rows_are_found_before_the_step_is_finished),
        Fault(KeptStates, "_drop", _states_are_found_whose_place_was_taken),
        Fault(KeptStates, "forget", _states_are_kept_without_their_blocks),
        Fault(KeptStates, "forget_all", _states_stay_kept_after_a_failed_step),
        Fault(StopRule, "check", _sequences_end_one_token_late),
        Fault(SlotTable, "_append_blocks", _two_new_blocks_of_a_slot_take_one_entry),
    )
}

FAULTS |= {
    "tokens_of_the_last_block_are_out_of_place": Mutation(SlotColumns, "append", swap(ast.Mod, ast.FloorDiv)),
    "blocks_of_a_finished_step_stay_held": Mutation(StepsInFlight, "retire", dropped_call("release")),
    "cached_blocks_are_not_held": Mutation(SequenceBlocks, "append_cached", dropped_call("hold")),
    "reserved_blocks_stay_reserved": Mutation(SequenceBlocks, "detach", dropped_update),
    "sequences_at_their_maximum_length_get_a_row": Mutation(StepPlanner, "_plan_decodes", swap(ast.Lt, ast.LtE)),
    "all_rows_or_none_are_decode_rows": Mutation(StepPlanner, "_plan_decodes", swap(ast.BitAnd, ast.BitOr)),
    "tokens_of_a_chunk_are_not_computed": Mutation(StepDraft, "commit", swap(ast.Add, ast.Sub), 0),
    "rows_of_sequences_that_have_left_get_tokens": Mutation(StepResults, "_take_one_each", swap(ast.Eq, ast.GtE)),
    "blocks_that_are_replaced_stay_reported": Mutation(PrefixCache, "forget", dropped_call("removed")),
    "events_of_plans_are_lost": Mutation(BlockEvents, "planned", dropped_call("append")),
    "finished_sequences_go_on": Mutation(StepResults, "_record", dropped_call("end")),
    "states_of_decode_rows_are_kept_late": Mutation(SequenceStates, "complete", swap(ast.Add, ast.Sub), 0),
    "states_of_decode_rows_get_another_hash": Mutation(SequenceStates, "publish_sampled", swap(ast.Add, ast.Sub)),
    "places_of_unwanted_states_are_lost": Mutation(SequenceStates, "publish_sampled", dropped_call("give_back")),
    "preempted_sequences_do_not_wait": Mutation(Sequences, "preempt", dropped_call("_queue")),
    "aborted_requests_stay_in_the_queue": Mutation(Sequences, "end", dropped_call("remove")),
}


def _rows_with_drafts_are_planned_ahead(right: Any, draft: StepDraft, step: int, columns: SlotColumns) -> Any:
    found = right(draft, step, columns)
    columns.is_held[:] = False
    return found


def _drafts_are_published(right: Any, plan: StepPlan, result: StepResult) -> Any:
    return plan.num_computed + plan.num_tokens


OF_DRAFTS: dict[str, Fault | Mutation] = {
    "rejected_drafts_stay_computed": Mutation(StepResults, "_take_several", dropped_update, 0),
    "rejected_drafts_stay_targets": Mutation(StepResults, "_take_several", dropped_update, 1),
    "drafts_have_no_blocks": Mutation(Drafting, "_with_blocks", dropped_call("add_blocks")),
    "drafts_go_beyond_the_end": Mutation(Drafting, "_room", swap(ast.Sub, ast.Add), 1),
    "rows_with_drafts_are_planned_ahead": Fault(StepDraft, "commit", _rows_with_drafts_are_planned_ahead),
    "drafts_are_published": Fault(scheduler, "first_ends", _drafts_are_published),
}


def _whole_prompts_are_cut(right: Any, budget: PrefillBudget, start: int, stop: int, **how: bool) -> int:
    return right(budget, start, stop, has_others=how["has_others"])


def _whole_prompts_read_the_cache(right: Any, blocks: SequenceBlocks, request: Request) -> CachedPrefix:
    before, request.reads_cache = request.reads_cache, True
    try:
        return right(blocks, request)
    finally:
        request.reads_cache = before


def _only_last_tokens_are_pooled(right: Any, plan: StepPlan, slots: SlotTable) -> Any:
    before, slots.whole_tasks = slots.whole_tasks, frozenset()
    try:
        return right(plan, slots)
    finally:
        slots.whole_tasks = before


def _released_slots_stay_pooled(right: Any, table: SlotTable, plan: StepPlan) -> Any:
    before = dict(table.pooled)
    found = right(table, plan)
    table.pooled = before | table.pooled
    return found


OF_POOLING: dict[str, Fault | Mutation] = {
    fault.wrong.__name__.strip("_"): fault
    for fault in (
        Fault(PrefillBudget, "chunk_end", _whole_prompts_are_cut),
        Fault(SequenceBlocks, "find_cached", _whole_prompts_read_the_cache),
        Fault(step_input, "_pooled", _only_last_tokens_are_pooled),
        Fault(SlotTable, "apply", _released_slots_stay_pooled),
    )
}
OF_POOLING["pooled_requests_go_on"] = Mutation(StepResults, "end", dropped_call("end"))
OF_POOLING["whole_prompts_are_cut_for_their_states"] = Mutation(SequenceStates, "chunk_stop", swap(ast.Or, ast.And), 0)


def story_worlds(number: int) -> list[World]:
    return [World.of(f"mutations {number}"), World.short_of_window_blocks(number)]


def first_broken(
    known: int = 0, worlds: Callable[[int], list[World]] = story_worlds, max_worlds: int = MAX_WORLDS
) -> Broken | None:
    for number in sorted(range(max_worlds), key=lambda number: number != known):
        for world in worlds(number):
            try:
                run_story(world, STEPS_PER_WORLD)
            except Broken as broken:
                return broken
    return None


def each(faults: Iterable[str]) -> list[Any]:
    """Test parameters; those outside IN_EVERY_RUN are slow tests."""
    return slow_but(faults, *IN_EVERY_RUN)


@pytest.mark.parametrize("name", each(FAULTS))
def test_the_simulation_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    monkeypatch.setattr(fault.owner, fault.name, fault.attribute())
    assert first_broken(KNOWN_WORLDS.get(name, 0)) is not None


@pytest.mark.parametrize("name", slow_but(OF_DRAFTS, "drafts_are_published"))
def test_the_simulation_finds_faults_of_drafts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = OF_DRAFTS[name]
    monkeypatch.setattr(fault.owner, fault.name, fault.attribute())
    assert first_broken(worlds=lambda number: [World.with_drafts(f"mutations {number}")]) is not None


@pytest.mark.parametrize("name", slow_but(OF_POOLING, "whole_prompts_are_cut", "only_last_tokens_are_pooled"))
def test_the_simulation_finds_faults_of_pooling(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = OF_POOLING[name]
    monkeypatch.setattr(fault.owner, fault.name, fault.attribute())
    assert first_broken(worlds=lambda number: [World.with_pooling(f"mutations {number}")]) is not None


@pytest.mark.slow
def test_a_story_that_broke_is_shortened_to_few_actions(monkeypatch: pytest.MonkeyPatch):
    fault = FAULTS["aborted_requests_stay_counted_in_the_queue"]
    monkeypatch.setattr(fault.owner, fault.name, fault.attribute())
    broken = first_broken()
    assert broken is not None
    added, aborted = shrink(broken, limit_s=30)
    assert isinstance(added, Add)
    assert aborted == Abort(added.request_id)


def test_a_mutation_without_a_place_fails():
    with pytest.raises(NoSuchPlace, match=r"^BlockPool.hold has 0 such places$"):
        Mutation(BlockPool, "hold", swap(ast.Mod, ast.FloorDiv)).function()
    with pytest.raises(AttributeError):
        Mutation(BlockPool, "no_such_method", dropped_update).function()


def test_a_mutation_changes_the_place_and_nothing_else():
    class Sums:
        def sums(self, one: int, other: int) -> list[int]:
            # a comment
            return [one + other, one + 2 * other]

    changed = [Mutation(Sums, "sums", swap(ast.Add, ast.Sub), place).function()(Sums(), 7, 5) for place in (0, 1)]
    assert (Sums().sums(7, 5), changed) == ([12, 17], [[2, 17], [12, -3]])
