"""Which adapters have slots, and which requests are passed."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fake_adapters import FakeStore

from stoker.engine.api import (
    ADAPTER_FAILED,
    AdapterRef,
    CacheScope,
    EngineRequest,
    InvalidRequest,
    RequestInputs,
    SamplingParams,
)
from stoker.engine.core import Scheduler, SchedulerSettings
from stoker.engine.core.adapter_slots import MAX_PASSED_STEPS, AdapterSettings
from stoker.engine.loop.adapter_reader import AdapterReader
from stoker.engine.step import StepPlan, StepResult


class Bench:
    """Requests of one prompt token, whose names are those of their adapters and a number: a1, b2; 1 without one."""

    def __init__(self, max_loras: int, max_num_seqs: int = 8, max_copies: int = 0) -> None:
        self.store = FakeStore(max_copies or max_loras)
        self.scheduler = Scheduler(
            SchedulerSettings(
                num_blocks=400,
                block_size=4,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=64,
                max_model_len=1000,
                enable_prefix_caching=False,
                scheduling_policy="priority",
                adapters=AdapterSettings(max_loras, AdapterReader(self.store, waits=True)),
            )
        )

    def add(self, *names: str, max_tokens: int = 900, priority: int = 0) -> None:
        for name in names:
            adapter = name.rstrip("0123456789")
            ref = AdapterRef(adapter, f"digest {adapter}", "") if adapter else None
            scope = CacheScope(adapter=ref.digest if ref else "")
            sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
            inputs = RequestInputs([5], sampling, scope, ref)
            self.scheduler.add(EngineRequest(request_id=name, inputs=inputs, priority=priority))

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        assert plan is not None
        self.scheduler.finish_step(plan, StepResult(np.full(int(plan.num_outputs.sum()), 7, np.int32)))
        return plan

    @property
    def running(self) -> list[str]:
        return [request.request_id for request in self.scheduler.sequences.running if request.slot >= 0]


def loads(plan: StepPlan) -> list[tuple[int, str]]:
    return [(load.slot, load.ref.name) for load in plan.adapter_loads]


def test_one_adapter_is_loaded_in_a_step_and_its_requests_share_the_slot():
    bench = Bench(max_loras=2)
    bench.add("a1", "b1", "1", "a2", "c1", "2")
    plan = bench.step()
    assert loads(plan) == [(0, "a")]
    assert {each.request_id: each.adapter_slot for each in plan.admissions} == {"a1": 0, "1": -1, "a2": 0, "2": -1}
    plan = bench.step()
    assert loads(plan) == [(1, "b")]
    assert [(each.request_id, each.adapter_slot) for each in plan.admissions] == [("b1", 1)]
    assert bench.step().admissions == []
    stats = bench.scheduler.stats()
    assert (stats.running_adapters, stats.waiting_adapters) == (("a", "b"), ("c",))


def test_the_slot_that_was_used_least_recently_is_taken():
    bench = Bench(max_loras=2)
    bench.add("a1", max_tokens=2)
    bench.add("b1", max_tokens=1)
    for _ in range(4):
        if bench.scheduler.has_work:
            bench.step()
    bench.add("b2", max_tokens=1)
    assert loads(bench.step()) == []  # it is in its slot still
    bench.add("c1")
    assert loads(bench.step()) == [(0, "c")]
    bench.add("a2")
    assert loads(bench.step()) == [(1, "a")]
    assert bench.store.reads == ["a", "b", "c", "a"]


def test_a_request_that_is_passed_for_long_gets_the_slot_of_the_adapter_with_most_rows():
    bench = Bench(max_loras=2)
    bench.add("a1", "a2", "b1", max_tokens=MAX_PASSED_STEPS + 10)
    bench.step()
    bench.step()
    bench.add("c1")
    bench.add("a3", max_tokens=20)
    bench.step()
    assert set(bench.running) == {"a1", "a2", "a3", "b1"}
    for _ in range(MAX_PASSED_STEPS):
        bench.step()
    bench.add("a4", "b2", "1", max_tokens=20)
    bench.step()
    assert set(bench.running) == {"a1", "a2", "b1", "b2", "1"}  # a is emptied
    while "a1" in bench.running:
        bench.step()
    bench.step()
    assert set(bench.running) - {"b1", "b2", "1"} == {"c1"}


def test_a_request_that_has_waited_long_is_admitted_again_after_a_preemption():
    bench = Bench(max_loras=1)
    bench.add("a1", max_tokens=MAX_PASSED_STEPS + 5)
    bench.step()
    bench.add("b1")
    while bench.running != ["b1"]:
        bench.step()
    sequences = bench.scheduler.sequences
    sequences.preempt(next(each for each in sequences.running if each.request_id == "b1"))
    assert bench.running == []
    bench.add("b2")
    bench.step()
    assert bench.running == ["b1", "b2"]


def test_a_request_that_leaves_ends_the_wait_of_the_others():
    bench = Bench(max_loras=1)
    bench.add("a1")
    bench.step()
    bench.add("b1")
    for _ in range(MAX_PASSED_STEPS + 1):
        bench.step()
    bench.add("a2")
    bench.step()
    assert bench.running == ["a1"]
    bench.scheduler.abort("b1")
    bench.step()
    assert bench.running == ["a1", "a2"]


def test_a_step_that_failed_may_not_have_loaded_its_adapter():
    bench = Bench(max_loras=2)
    bench.add("a1", "1")
    plan = bench.scheduler.schedule()
    assert plan is not None
    bench.scheduler.fail_step(plan, "no")
    bench.add("a2")
    assert loads(bench.step()) == [(1, "a")]


def test_a_step_that_failed_leaves_no_load_without_a_request():
    """The load was planned again although no request needed it, and failed with the copy gone."""
    bench = Bench(max_loras=2)
    bench.add("a1", "1")
    plan = bench.scheduler.schedule()
    assert plan is not None
    bench.scheduler.fail_step(plan, "no")
    bench.add("2")
    assert loads(bench.step()) == []
    assert not +bench.store.pinned


def test_a_copy_is_pinned_until_the_step_that_places_it_is_finished():
    """The sequence was aborted before: its copy could be gone when the step began."""
    bench = Bench(max_loras=1)
    bench.add("a1", "1")
    plan = bench.scheduler.schedule()
    assert plan is not None
    bench.scheduler.abort("a1")
    assert (bench.store.held["digest a"], bench.store.pinned["digest a"]) == (0, 1)
    bench.scheduler.finish_step(plan, StepResult(np.full(int(plan.num_outputs.sum()), 7, np.int32)))
    assert bench.store.pinned["digest a"] == 0


def test_a_request_that_is_passed_for_long_gets_the_memory_of_one_that_waits():
    """b waits for the slot of a and has the one copy more; c, which ranks before it, has none."""
    bench = Bench(max_loras=1)
    bench.add("a1", max_tokens=MAX_PASSED_STEPS + 20)
    bench.step()
    bench.store.in_slots.add("digest a")
    bench.add("b1")
    bench.add("c1", priority=-1)
    for _ in range(MAX_PASSED_STEPS - 1):
        bench.step()
    assert (list(bench.store.copies), bench.store.reads) == (["digest a", "digest b"], ["a", "b"])
    bench.step()
    bench.step()
    assert list(bench.store.copies) == ["digest a", "digest c"]
    while "a1" in bench.running:
        bench.step()
    bench.step()
    assert bench.running == ["c1"]
    assert bench.store.reads == ["a", "b", "c", "b"]  # when nothing needs the copy of a any more


def test_a_preempted_sequence_gives_its_slot_back():
    bench = Bench(max_loras=1)
    bench.add("a1")
    bench.step()
    (request,) = bench.scheduler.sequences.running
    bench.scheduler.sequences.preempt(request)
    bench.scheduler.sequences.drop_departed()
    bench.add("b1")
    plan = bench.step()
    assert [each.request_id for each in plan.admissions] == ["a1"]  # it ranks first, and its adapter is loaded
    assert bench.scheduler.stats().waiting_adapters == ("b",)


def test_an_adapter_that_cannot_be_read_ends_its_request():
    bench = Bench(max_loras=1)
    bench.store.missing.add("a")
    bench.add("a1", "1")
    bench.step()
    (failed,) = bench.scheduler.take_failed()
    assert (failed.request_id, failed.error) == ("a1", ADAPTER_FAILED + "adapter `a` is gone")
    assert bench.running == ["1"]
    assert bench.scheduler.stats().waiting_adapters == ()


def test_without_adapters_a_request_with_one_is_refused():
    settings = SchedulerSettings(num_blocks=4, block_size=4, max_num_seqs=1, max_num_batched_tokens=4, max_model_len=8)
    inputs = RequestInputs([5], SamplingParams(), adapter=AdapterRef("a", "0", ""))
    with pytest.raises(InvalidRequest, match="serves no adapters"):
        Scheduler(settings).add(EngineRequest(request_id="r", inputs=inputs))
