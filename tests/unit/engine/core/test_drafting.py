"""Which rows get drafts, and what became of them."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from tests.drafters import AnswerDrafter, AnyDrafter
from tests.fake_adapters import adapters_in_memory
from tests.fake_runner import FakeRunner, FakeSettings, continuation, num_valid_drafts

from stoker.engine.api import (
    AdapterRef,
    CacheScope,
    Constraint,
    EngineRequest,
    InvalidRequest,
    RequestInputs,
    SamplingParams,
    VerifiedDraft,
)
from stoker.engine.core import Scheduler, SchedulerSettings
from stoker.engine.core.settings import DraftSettings
from stoker.engine.step import StepPlan

PROMPT = [3, 4, 5, 6, 7]


class Bench:
    def __init__(self, drafter: AnyDrafter | None = None, own: dict[str, Any] | None = None, **changes: Any) -> None:
        """own: of DraftSettings. changes: of SchedulerSettings."""
        self.drafter = drafter or AnyDrafter()
        values = {"num_blocks": 100, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
        drafting = DraftSettings(drafter=self.drafter, **(own or {}))
        self.scheduler = Scheduler(
            SchedulerSettings(**{**values, "max_model_len": 200, "drafting": drafting, **changes})
        )
        self.runner = FakeRunner(FakeSettings())
        self.answers: dict[str, list[int]] = {}
        self.drafts: dict[str, list[VerifiedDraft]] = {}

    def add(
        self,
        name: str,
        prompt: list[int] | None = None,
        *,
        prediction: list[int] | None = None,
        salt: str = "",
        epoch: int = 0,
        adapter: AdapterRef | None = None,
        **sampling: Any,
    ) -> None:
        params = SamplingParams(**{"max_tokens": 20, **sampling})
        scope = CacheScope(salt, epoch, adapter="" if adapter is None else adapter.digest)
        inputs = RequestInputs(prompt or PROMPT, params, scope, adapter)
        self.scheduler.add(EngineRequest(request_id=name, inputs=inputs, prediction=prediction or []))

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        assert plan is not None
        self.finish(plan)
        return plan

    def finish(self, plan: StepPlan) -> None:
        for output in self.scheduler.finish_step(plan, self.runner.execute(plan), 0.5):
            self.answers.setdefault(output.request_id, []).extend(output.token_ids)
            self.drafts.setdefault(output.request_id, []).extend(output.drafts or ())

    def run(self) -> list[StepPlan]:
        plans = []
        while self.scheduler.has_work:
            plans.append(self.step())
        return plans


def test_a_row_has_an_output_for_each_draft_and_one_more():
    bench = Bench()
    bench.add("a")
    assert bench.step().drafts == []  # the prompt
    plan = bench.step()
    assert plan.drafts == [(0, [0, 0])]
    assert (plan.num_tokens.tolist(), plan.num_outputs.tolist(), plan.num_computed.tolist()) == ([3], [3], [5])
    bench.run()
    assert bench.answers["a"] == continuation(PROMPT, 20)


def test_outputs_say_what_became_of_the_drafts_of_their_request():
    answers = {(9, *PROMPT): continuation([9, *PROMPT], 20), (8, *PROMPT): continuation([8, *PROMPT], 20)}
    bench = Bench(AnswerDrafter(answers, max_tokens=4, wrong_every=7), max_num_batched_tokens=200)
    bench.add("a", [9, *PROMPT])
    bench.step()
    bench.add("b", [8, *PROMPT])
    bench.add("without", [9, 9], max_tokens=1)
    bench.run()
    assert [bench.answers["a"], bench.answers["b"]] == list(answers.values())
    assert bench.drafts["without"] == []
    for name in "ab":
        drafts = bench.drafts[name]
        assert {draft.num_accepted for draft in drafts} > {4, 0}
        assert all(0 <= draft.num_accepted <= draft.num_tokens <= 4 for draft in drafts)
        assert len(drafts) + sum(draft.num_accepted for draft in drafts) <= 20
    counts = bench.scheduler.stats().drafts
    assert counts is not None
    everything = [draft for name in "ab" for draft in bench.drafts[name]]
    assert counts.drafts == len(everything)
    assert counts.tokens == sum(draft.num_tokens for draft in everything)
    assert sum(counts.accepted) == sum(draft.num_accepted for draft in everything)


class Heard(AnyDrafter):
    """A drafter that remembers what it hears of answers."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[Any, ...]] = []

    def announce(self, slot: int, num_prompt_tokens: int, predicted: list[int], *, is_shared: bool) -> None:
        self._called("announce")
        self.heard.append((slot, num_prompt_tokens, predicted, is_shared))

    def is_predicted(self, slot: int) -> bool:
        self._called("is_predicted")
        return slot == 1

    def release(self, slot: int, length: int) -> None:
        self._called("release")
        self.heard.append((slot, length))

    def forget(self) -> None:
        self._called("forget")
        self.heard.append(("forget",))


def test_a_reader_hears_of_each_sequence_what_it_may_know():
    drafter = Heard()
    bench = Bench(drafter, own={"reader": drafter})
    bench.add("a", max_tokens=4)
    bench.add("b", max_tokens=30, prediction=[5, 6], salt="tenant")
    bench.run()
    assert drafter.heard == [(0, 5, [], True), (1, 5, [5, 6], False), (0, 9), (1, 35)]
    assert {draft.is_predicted for draft in bench.drafts["a"]} == {False}
    assert {draft.is_predicted for draft in bench.drafts["b"]} == {True}


ADAPTERS = adapters_in_memory(max_loras=2)
SQL = AdapterRef("sql", "a1b2", "/adapters/sql")


def test_a_sequence_with_an_adapter_is_drafted_from_its_own_text():
    drafter = Heard()
    bench = Bench(drafter, own={"reader": drafter}, adapters=ADAPTERS)
    bench.add("a", max_tokens=4, adapter=SQL)
    bench.run()
    assert drafter.heard[0] == (0, 5, [], False)  # neither shared nor from those of others
    assert bench.drafts["a"]


def test_networks_draft_nothing_for_sequences_with_an_adapter():
    """They would guess what the model says without it."""
    drafter = AnyDrafter()
    drafter.is_in_runner = True
    bench = Bench(drafter, adapters=ADAPTERS)
    bench.add("plain", max_tokens=8)
    bench.add("adapted", max_tokens=8, adapter=SQL)
    bench.step()
    plan = bench.scheduler.schedule()
    assert plan is not None
    slots = {request.request_id: request.slot for request in bench.scheduler.sequences.running}
    outputs = dict(zip(plan.slots.tolist(), plan.num_outputs.tolist(), strict=True))
    assert outputs == {slots["plain"]: 3, slots["adapted"]: 1}


def test_a_preempted_sequence_is_announced_again_and_ends_once():
    drafter = Heard()
    bench = Bench(drafter, own={"reader": drafter}, num_blocks=10)
    for name in "abc":
        bench.add(name, [len(name), *PROMPT], max_tokens=16)
    bench.run()
    assert bench.scheduler.stats().num_preemptions > 0
    announced = [each for each in drafter.heard if len(each) == 4]
    assert len(announced) > 3
    assert {each[1] for each in announced} == {6}
    # The third was admitted again for its last token, which needs no drafts.
    assert [each for each in drafter.heard if len(each) == 2] == [(0, 22), (1, 22)]


def test_after_a_reset_of_the_prefix_cache_earlier_answers_are_forgotten():
    """Answers of sequences that were running then are forgotten too."""
    drafter = Heard()
    bench = Bench(drafter, own={"reader": drafter})
    bench.add("a", max_tokens=20)
    bench.step()
    bench.add("b", max_tokens=4, epoch=1)
    bench.add("c", max_tokens=4, epoch=1)
    bench.run()
    assert [each for each in drafter.heard if len(each) < 4] == [("forget",), (1, 9), (2, 9)]


@pytest.mark.parametrize("name", ["announce", "is_predicted", "release"])
def test_a_reader_that_fails_costs_no_request(name: str):
    drafter = Heard()
    drafter.fails_in = name
    bench = Bench(drafter, own={"reader": drafter})
    for request in "ab":
        bench.add(request)
        bench.run()
        assert bench.answers[request] == continuation(PROMPT, 20)


@pytest.mark.parametrize("prediction", [[-1], [2**31], ["a"], [1] * 201])
def test_a_prediction_is_tokens_of_one_sequence(prediction: list[Any]):
    with pytest.raises(InvalidRequest, match="prediction") as caught:
        Bench().add("a", prediction=prediction)
    assert caught.value.param == "prediction"


def test_drafts_end_where_the_answer_ends():
    """The last token of an answer is computed by no step, so one that is before it has no draft."""
    bench = Bench(AnyDrafter(max_tokens=8))
    bench.add("a", max_tokens=4)
    plans = bench.run()
    assert max(int(plan.num_computed[0] + plan.num_tokens[0]) for plan in plans) <= len(PROMPT) + 3
    assert bench.answers["a"] == continuation(PROMPT, 4)


def test_a_long_sequence_goes_on_without_drafts():
    bench = Bench(own={"max_model_len": 12})
    bench.add("a")
    plans = bench.run()
    ends = [int(plan.num_computed[0] + plan.num_tokens[0]) for plan in plans if plan.drafts]
    assert ends
    assert max(ends) <= 12
    assert not plans[-1].drafts
    assert bench.answers["a"] == continuation(PROMPT, 20)


def test_requests_that_begin_while_many_wait_get_no_drafts():
    """Two slots: the first two begin while one, then none waits."""
    bench = Bench(own={"max_num_waiting": 1}, max_num_seqs=1)
    for index in range(3):
        bench.add(str(index), [9 + index, *PROMPT])
    drafted = [bool(plan.drafts) for plan in bench.run() if plan.num_computed[0]]
    first_without = drafted[:19]
    assert not any(first_without)
    assert all(drafted[19:22])


@pytest.mark.parametrize(
    ("sampling", "has_drafts"),
    [
        ({}, True),
        ({"temperature": 0.5, "top_k": 4, "logit_bias": {3: 1.0}, "bad_word_ids": ((3, 4),), "logprobs": 1}, True),
        ({"frequency_penalty": 0.1}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"constraint": Constraint("start: /a/")}, False),
    ],
)
def test_what_the_sampler_keeps_something_of_is_sampled_in_order(sampling: dict[str, Any], has_drafts: bool):
    """Several processes cannot, so such sequences have no drafts there."""
    for in_order in (True, False):
        bench = Bench(own={"in_order": in_order})
        bench.add("a", **sampling)
        assert any(plan.drafts for plan in bench.run()) == (has_drafts or in_order)


def test_nothing_is_preempted_for_drafts_and_no_free_block_of_others_is_taken():
    """With a block for each sequence and few more, drafts end with the block."""
    bench = Bench(AnyDrafter(max_tokens=8), num_blocks=12, max_num_seqs=2)
    bench.add("a", [8, *PROMPT], max_tokens=14)
    bench.add("b", [9, *PROMPT], max_tokens=14)
    plans = bench.run()
    assert bench.scheduler.stats().num_preemptions == 0
    assert any(plan.drafts for plan in plans)
    assert bench.answers == {name: continuation([first, *PROMPT], 14) for name, first in (("a", 8), ("b", 9))}
    stats = bench.scheduler.stats()
    assert stats.num_free_blocks == stats.num_blocks


def test_drafts_take_at_most_half_of_what_a_step_has_left():
    bench = Bench(AnyDrafter(max_tokens=30), max_num_batched_tokens=20)
    bench.add("a", max_tokens=60)
    bench.step()
    assert bench.step().num_batched_tokens == 1 + (20 - 1) // 2
    bench.add("b", [*PROMPT, 9, 9])
    plan = bench.step()
    assert plan.num_batched_tokens <= 20
    assert len(plan.admissions) == 1


def test_while_drafts_pay_a_step_waits_for_the_one_before():
    drafter = AnyDrafter()
    bench = Bench(drafter)
    bench.add("a")
    first = bench.scheduler.schedule()
    assert first is not None
    assert bench.scheduler.schedule() is None
    bench.finish(first)
    second = bench.scheduler.schedule()
    assert second is not None
    assert second.drafts
    bench.finish(second)


def test_a_prompt_in_chunks_is_planned_ahead():
    """A prompt whose end occurred before has something to draft, but not yet."""
    bench = Bench(max_num_batched_tokens=8)
    bench.add("a", list(range(5, 35)))
    plans = [bench.scheduler.schedule() for _ in range(3)]
    assert [plan.num_outputs.tolist() for plan in plans if plan is not None] == [[0], [0], [0]]
    for plan in plans:
        assert plan is not None
        bench.finish(plan)
    bench.run()
    assert bench.answers["a"] == continuation(list(range(5, 35)), 20)


def test_a_prompt_that_must_be_computed_whole_gets_what_drafts_would_take():
    """With drafts of half a step it did not fit, and waited until all answers paused."""
    bench = Bench(AnyDrafter(max_tokens=40), enable_chunked_prefill=False, max_num_batched_tokens=200)
    bench.add("a", max_tokens=100)
    bench.step()
    bench.step()
    bench.add("b", [9] * 150)
    plans = [bench.step() for _ in range(3)]
    assert any(plan.admissions for plan in plans)


def test_a_request_without_room_for_a_draft_is_not_followed():
    bench = Bench()
    bench.add("a", max_tokens=1)
    bench.run()
    assert bench.drafter.num_calls == 0


def test_steps_are_planned_ahead_while_drafts_do_not_pay():
    class Idle(AnyDrafter):
        def counts(self, slots: Any, room: Any) -> Any:
            return np.zeros(len(slots), np.int32)

    bench = Bench(Idle())
    bench.add("a")
    plans = [bench.scheduler.schedule() for _ in range(3)]
    for plan in plans:
        assert plan is not None
        bench.finish(plan)
    bench.run()
    assert bench.answers["a"] == continuation(PROMPT, 20)


def test_what_became_of_drafts_is_counted():
    bench = Bench(AnyDrafter(max_tokens=3))
    bench.add("a", max_tokens=40)
    plans = bench.run()
    counts = bench.scheduler.stats().drafts
    assert counts is not None
    assert counts.drafts == sum(bool(plan.drafts) for plan in plans)
    assert counts.tokens == sum(len(token_ids) for plan in plans for _, token_ids in plan.drafts)
    decodes = len(plans) - 1
    assert sum(counts.accepted) == 40 - 1 - decodes
    assert list(counts.accepted) == sorted(counts.accepted, reverse=True)
    assert len(counts.accepted) == 3
    assert Bench(drafting=None).scheduler.stats().drafts is None


@pytest.mark.parametrize("method", ["admit", "follow", "counts", "drafts", "record_step"])
def test_a_drafter_that_fails_is_not_asked_again_and_no_request_is_lost(method: str, caplog: pytest.LogCaptureFixture):
    bench = Bench(AnyDrafter(fails_in=method))
    with caplog.at_level(logging.ERROR):
        bench.add("a")
        bench.add("b", [8, *PROMPT])
        for _ in range(3):  # a step is recorded when the one after it has ended
            bench.step()
        num_calls = bench.drafter.num_calls
        bench.run()
    assert bench.drafter.num_calls == num_calls
    assert bench.answers == {"a": continuation(PROMPT, 20), "b": continuation([8, *PROMPT], 20)}
    assert [record.message for record in caplog.records] == ["drafts are switched off: the drafter has failed"]


def test_a_request_that_is_refused_has_no_slot_to_forget():
    bench = Bench()
    with pytest.raises(InvalidRequest):
        bench.add("a", [-1])
    assert bench.drafter.num_calls == 0


def bench_with_states(**changes: Any) -> Bench:
    return Bench(AnyDrafter(max_tokens=5), num_kept_states=4, retention_interval=8, **changes)


def test_no_row_passes_a_place_where_the_state_of_its_sequence_is_kept():
    bench = bench_with_states()
    bench.add("a")
    plans = bench.run()
    assert bench.answers["a"] == continuation(PROMPT, 20)
    assert any(plan.drafts for plan in plans)
    rows = [(int(plan.num_computed[0]), int(plan.num_computed[0] + plan.num_tokens[0])) for plan in plans]
    assert all((end - 1) // 8 == start // 8 for start, end in rows[1:])
    kept = [row for plan, row in zip(plans, rows, strict=True) if len(plan.kept_states)]
    assert sorted({end for _, end in kept} & {8, 16, 24}) == [8, 16, 24]


def test_the_state_after_rejected_drafts_is_not_found_and_leaves_an_earlier_one():
    bench, outcomes = bench_with_states(), set()
    kept = bench.scheduler.sequences.blocks.cache.states
    for length in range(4, 12):
        bench.add(str(length), PROMPT * 3, max_tokens=8 + length)
        while bench.scheduler.has_work:
            plan = bench.scheduler.schedule()
            assert plan is not None
            before = set(kept._by_hash)
            bench.finish(plan)
            if len(plan.kept_states) and plan.drafts:
                num_drafts = int(plan.num_outputs[0]) - 1
                is_whole = num_valid_drafts(int(plan.num_computed[0]) + 1, num_drafts) == num_drafts
                outcomes.add((is_whole, before == set(kept._by_hash)))
    assert {(True, False), (False, True)} <= outcomes
    assert len(kept._free) + len(kept._by_hash) == 4
