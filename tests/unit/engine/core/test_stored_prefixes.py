"""Prefixes of waiting requests that a store has, and what is counted of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker.engine.kv_stores.tiered_store import TieredStore
from stoker.engine.step import StepPlan
from stoker.engine.step.result import StepResult

from .test_scheduler import Bench, prompt


class StoringBench(Bench):
    """Blocks of 4 tokens. What a plan saves is in the store from then on."""

    def __init__(self, **changes: Any) -> None:
        self.store = TieredStore(1 << 20)
        super().__init__(store=self.store, **changes)

    def schedule(self) -> StepPlan:
        plan = super().schedule()
        for save in plan.saves:
            self.store.save(save.block_hash, memoryview(save.block_hash), is_for_others=save.is_for_others)
        return plan

    def compute(self, *prompts: list[int]) -> None:
        """And let the prefix cache lose them: they remain in the store."""
        for tokens in prompts:
            self.add("stored", tokens, max_tokens=1)
            self.run()
        self.scheduler.forget_cached()


def test_a_waiting_request_reads_what_the_cache_has_lost_since_it_was_looked_up() -> None:
    """Its prefix is in the KV cache first, and lost while it waits for blocks."""
    bench = StoringBench(num_blocks=19)
    waits = prompt(40)
    bench.add("stored", waits, max_tokens=1)
    bench.run()
    before = bench.scheduler.stats()
    bench.add("grows", prompt(36, 3000), max_tokens=36)
    bench.step()
    bench.add("waits", waits, max_tokens=1)
    bench.run()
    found = bench.scheduler.stats()
    assert found.store_hits - before.store_hits == 32  # all of its full blocks but the one that is still cached
    assert found.store_hits <= found.store_queries
    assert found.store_hits <= found.prefix_hits


def test_reads_after_a_preemption_are_not_counted() -> None:
    """As in the prefix cache."""
    bench = StoringBench(num_blocks=12)
    bench.add("first", prompt(22), max_tokens=20)
    bench.add("second", prompt(20, 3000), max_tokens=20)
    loads = []
    while bench.scheduler.has_work:
        plan, _ = bench.step()
        loads += plan.loads
    found = bench.scheduler.stats()
    assert found.num_preemptions
    assert loads
    assert found.store_hits == 0
    assert found.store_queries == 42


def test_the_last_load_of_a_block_in_a_plan_is_of_the_request_that_got_it() -> None:
    """A prefix that was placed for a request which is not admitted may lose its blocks to the next one's."""
    limits = {"max_num_partial_prefills": 2, "max_long_partial_prefills": 1, "long_prefill_token_threshold": 62}
    bench = StoringBench(num_blocks=68, max_num_batched_tokens=16, **limits)
    passed, admitted = prompt(68, 1000), prompt(60, 2000)
    bench.compute(passed[:41], admitted)
    bench.add("runs", prompt(199, 5000))
    for _ in range(11):
        bench.step()
    bench.add("passed", passed)
    bench.add("admitted", admitted)
    plan = bench.schedule()
    (admission,) = plan.admissions
    filled = [block_id for load in plan.loads for block_id in load.block_ids]
    assert len(set(filled)) < len(filled)
    last = {load.block_ids[0]: bytes(load.content) for load in plan.loads}
    request = bench.scheduler.sequences.get("admitted")
    assert request is not None
    assert [last[block_id] for block_id in admission.block_ids[0][:14]] == request.block_hashes[:14]


def test_blocks_that_a_running_sequence_shares_need_no_room() -> None:
    bench = StoringBench(num_blocks=13)
    tokens = prompt(40)
    bench.compute(tokens)
    bench.add("runs", tokens[:21], max_tokens=30)
    bench.step()
    before = bench.scheduler.stats().store_hits
    bench.add("shares", tokens, max_tokens=1)
    plan, _ = bench.step()
    assert [admission.num_prompt_tokens for admission in plan.admissions] == [40]
    assert bench.scheduler.stats().store_hits - before == 16
    assert plan.num_tokens.tolist() == [1, 4]


def fail(bench: StoringBench, plan: StepPlan, *, is_whole_step: bool) -> None:
    """As with contents that make NaN: in one row, or in the whole step."""
    if is_whole_step:
        bench.scheduler.fail_step(plan, "broken")
        return
    result = StepResult(token_ids=np.full(plan.num_outputs.sum(), 9, np.int32), errors={0: "NaN"})
    bench.scheduler.finish_step(plan, result)


@pytest.mark.parametrize("is_whole_step", [False, True])
def test_stored_blocks_are_dropped_when_the_step_that_used_them_fails(is_whole_step: bool) -> None:
    """They stayed in the prefix cache, and each later request with this prompt failed, too."""
    bench = StoringBench()
    tokens = prompt(22)
    bench.compute(tokens[:13])
    bench.add("a", tokens)
    plan = bench.schedule()
    assert len(plan.loads) == 3
    hashes = [save.block_hash for save in plan.saves]  # computed with them
    assert len(hashes) == 2
    fail(bench, plan, is_whole_step=is_whole_step)
    assert not any(map(bench.store.has, hashes))
    bench.add("b", tokens)
    plan, outputs = bench.step()
    assert plan.loads == []
    assert plan.num_computed.tolist() == [0]
    assert len(plan.saves) == 5  # they are stored again
    assert outputs["b"].num_cached_tokens == 0


def test_blocks_that_were_computed_here_stay_when_a_request_fails() -> None:
    """Else requests that forbid every token could empty the cache of others."""
    bench = StoringBench()
    bench.add("a", prompt(22))
    fail(bench, bench.schedule(), is_whole_step=False)
    bench.add("b", prompt(22))
    assert bench.schedule().num_computed.tolist() == [20]
