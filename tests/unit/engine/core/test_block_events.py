from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tests.fake_adapters import adapters_in_memory

from stoker.engine.api import AdapterRef, CacheScope, EngineRequest, KeyedSpan, RequestInputs, SamplingParams
from stoker.engine.core import Scheduler, SchedulerSettings
from stoker.engine.core.block_events import BlockEvent, BlocksCleared, BlocksRemoved, BlocksStored
from stoker.engine.step import StepPlan, StepResult


class Bench:
    def __init__(self, **changes: object) -> None:
        values: dict[str, object] = {
            "num_blocks": 8,
            "block_size": 4,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            "max_model_len": 200,
            "records_block_events": True,
        }
        self.scheduler = Scheduler(SchedulerSettings(**(values | changes)))  # type: ignore[arg-type]
        assert self.scheduler.block_events is not None
        self.events = self.scheduler.block_events

    def add(
        self, name: str, prompt: list[int], max_tokens: int = 1, adapter: AdapterRef | None = None, **scope: Any
    ) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        if adapter is not None:
            scope["adapter"] = adapter.digest
        inputs = RequestInputs(prompt, sampling, CacheScope(**scope), adapter)
        self.scheduler.add(EngineRequest(request_id=name, inputs=inputs))

    def plan(self) -> StepPlan:
        plan = self.scheduler.schedule()
        assert plan is not None
        return plan

    def finish(self, plan: StepPlan) -> list[BlockEvent]:
        self.scheduler.finish_step(plan, StepResult(np.full(plan.num_outputs.sum(), 9, np.int32)))
        return self.events.take()

    def run(self, name: str, prompt: list[int], **options: object) -> list[BlockEvent]:
        self.add(name, prompt, **options)  # type: ignore[arg-type]
        events: list[BlockEvent] = []
        while self.scheduler.has_work:
            events += self.finish(self.plan())
        return events

    @property
    def num_cached(self) -> int:
        return len(self.scheduler.sequences.blocks.cache)


def test_blocks_are_reported_when_their_step_is_finished():
    bench = Bench()
    bench.add("a", list(range(10)), max_tokens=5)
    plan = bench.plan()
    assert bench.num_cached == 2
    assert bench.events.take() == []
    (event,) = bench.finish(plan)
    assert isinstance(event, BlocksStored)
    assert (event.group, event.parent_hash, event.token_ids) == (0, None, list(range(8)))
    assert event.extra_keys == [None, None]
    first = event.block_hashes
    later: list[BlockEvent] = []
    while bench.scheduler.has_work:
        later += bench.finish(bench.plan())
    (sampled,) = later  # of 10 and 4 computed sampled tokens: one block more
    assert isinstance(sampled, BlocksStored)
    assert (sampled.parent_hash, sampled.token_ids) == (first[1], [8, 9, 9, 9])


def test_the_order_of_the_cache_is_kept_while_steps_overlap():
    """Blocks that a later plan has replaced are not reported before those that an earlier step has filled."""
    bench = Bench(num_blocks=4)
    bench.run("old", list(range(9)))
    bench.add("a", [50] * 3, max_tokens=9)
    first = bench.plan()
    bench.add("b", list(range(100, 108)))
    second = bench.plan()
    before = bench.finish(first)
    after = bench.finish(second)
    assert before == []
    removed = [one for event in after if isinstance(event, BlocksRemoved) for one in event.block_hashes]
    assert removed
    held: set[bytes] = set(bench.events.reported[0])
    assert not held & set(removed)


def test_a_removed_block_is_reported_with_its_group():
    bench = Bench(num_blocks=8, windows=(None, 8))
    stored = bench.run("a", list(range(8)))
    assert {event.group for event in stored if isinstance(event, BlocksStored)} == {0, 1}
    removed = [event for event in bench.run("b", list(range(100, 116))) if isinstance(event, BlocksRemoved)]
    assert {event.group for event in removed} <= {0, 1}
    for group, hashes in enumerate(bench.events.reported):
        assert hashes == set(bench.scheduler.sequences.blocks.cache._blocks[group])


def test_a_step_that_fails_clears_everything_and_what_was_not_reported_yet():
    bench = Bench()
    bench.run("a", list(range(9)))
    bench.add("b", list(range(50, 59)))
    bench.scheduler.fail_step(bench.plan(), "no memory")
    assert bench.events.take() == [BlocksCleared()]
    assert bench.events.reported == [set()]
    assert bench.num_cached == 0


def test_a_later_epoch_clears_everything_and_requests_of_earlier_ones_are_not_reported():
    bench = Bench(num_blocks=40)
    (old,) = bench.run("a", list(range(9)))
    first, *events = bench.run("b", list(range(9)), epoch=2)
    assert first == BlocksCleared()
    (new,) = events
    assert isinstance(old, BlocksStored)
    assert isinstance(new, BlocksStored)
    assert (new.token_ids, new.extra_keys) == (
        old.token_ids,
        [None, None],
    )  # an epoch is no salt: routers need not know it
    assert not set(old.block_hashes) & set(new.block_hashes)
    assert bench.run("late", list(range(20, 40)), epoch=1) == []
    assert bench.events.reported == [set(new.block_hashes)]


def test_only_a_digest_of_a_salt_is_reported_and_with_the_first_block_only():
    bench = Bench()
    (event,) = bench.run("a", list(range(9)), salt="secret of a tenant")
    assert isinstance(event, BlocksStored)
    ((digest,), later) = event.extra_keys  # type: ignore[misc]
    assert later is None
    assert "secret" not in bytes.fromhex(digest).decode("latin-1")  # type: ignore[arg-type]
    other = Bench()
    events = [*other.run("b", list(range(4)), salt="s"), *other.run("c", list(range(9)), salt="s")]
    shown = [event.extra_keys for event in events if isinstance(event, BlocksStored)]
    assert [keys == [None] for keys in shown] == [False, True]


def test_blocks_are_shared_up_to_the_first_that_has_another_key():
    bench, image = Bench(num_blocks=40), KeyedSpan(5, 10, "image")
    (plain,) = bench.run("plain", list(range(17)))
    (other,) = bench.run("image", list(range(17)), spans=(image,))
    assert isinstance(plain, BlocksStored)
    assert isinstance(other, BlocksStored)
    assert other.parent_hash == plain.block_hashes[0]  # which both have
    assert not set(other.block_hashes) & set(plain.block_hashes)
    assert other.token_ids == list(range(4, 16))
    assert other.extra_keys == [[("image", 1)], [("image", -3)], None]
    assert bench.run("again", list(range(17)), spans=(image,)) == []
    (sampled,) = bench.run("sampled", list(range(6)), max_tokens=4, spans=(replace(image, end=6),))
    assert isinstance(sampled, BlocksStored)
    assert (sampled.token_ids, sampled.extra_keys) == ([4, 5, 9, 9], [[("image", 1)]])


def test_without_prefix_caching_or_recording_there_are_no_events():
    assert Bench(enable_prefix_caching=False).run("a", list(range(9))) == []
    assert (
        Scheduler(
            SchedulerSettings(num_blocks=8, block_size=4, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=200)
        ).block_events
        is None
    )


def test_blocks_of_an_adapter_have_its_name_and_a_root():
    bench = Bench(adapters=adapters_in_memory(max_loras=2))
    own = AdapterRef("sql", "a1b2", "/adapters/sql")
    prompt = list(range(9))
    (plain,) = bench.run("plain", prompt)
    (adapted,) = bench.run("adapted", prompt, adapter=own)
    assert isinstance(plain, BlocksStored)
    assert isinstance(adapted, BlocksStored)
    assert (plain.adapter, plain.extra_keys) == (None, [None, None])
    root = bench.scheduler.sequences.blocks.hasher.root(CacheScope(adapter="a1b2")).hex()
    assert (adapted.adapter, adapted.extra_keys) == (own, [[root], None])
    assert not {*plain.block_hashes} & {*adapted.block_hashes}
