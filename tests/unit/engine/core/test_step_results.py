"""Rows with drafts: a result says how many of a row's outputs are valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.drafters import AnyDrafter
from tests.fake_runner import FakeRunner, FakeSettings, continuation, num_valid_drafts

from stoker.engine.api import EngineOutput, EngineRequest, FinishReason, RequestInputs, SamplingParams
from stoker.engine.core import Scheduler, SchedulerSettings
from stoker.engine.core.block_events import BlocksStored
from stoker.engine.core.request import NO_SLOT
from stoker.engine.core.settings import DraftSettings
from stoker.engine.step import StepPlan, StepResult

BLOCK_SIZE = 4
PROMPTS = [list(range(10 * index, 10 * index + 3 + 2 * index)) for index in range(5)]
NO_EOS = 1001


class Bench:
    def __init__(self, **changes: object) -> None:
        values: dict[str, object] = {
            "num_blocks": 100, "block_size": BLOCK_SIZE, "max_num_seqs": 8, "max_num_batched_tokens": 64,
            "max_model_len": 200, "eos_token_ids": (NO_EOS,), "records_block_events": True,
            "drafting": DraftSettings(drafter=AnyDrafter()),
        }  # fmt: skip
        settings = SchedulerSettings(**(values | changes))  # type: ignore[arg-type]
        self.scheduler, self.runner = Scheduler(settings), FakeRunner(FakeSettings())
        self.done: dict[str, EngineOutput] = {}
        self.max_valid = 0

    def add(self, name: str, prompt: list[int], **sampling: object) -> None:
        params = SamplingParams(**({"max_tokens": 30} | sampling))  # type: ignore[arg-type]
        self.scheduler.add(EngineRequest(request_id=name, inputs=RequestInputs(prompt, params)))

    def step(self, change: Callable[[StepPlan, StepResult], StepResult] = lambda plan, result: result) -> StepPlan:
        """Execute one step. change: of its result."""
        plan = self.scheduler.schedule()
        assert plan is not None
        self.finish(plan, change(plan, self.runner.execute(plan)))
        return plan

    def finish(self, plan: StepPlan, result: StepResult) -> None:
        outputs = list(self.scheduler.finish_step(plan, result))
        assert len({output.request_id for output in outputs}) == len(outputs)
        self.max_valid = max(self.max_valid, 0 if result.num_valid is None else result.num_valid.max())
        for output in outputs:
            if output.request_id in self.done:
                self.done[output.request_id].merge(output)
            else:
                self.done[output.request_id] = output
        self.check_running()

    def check_running(self) -> None:
        columns = self.scheduler.sequences.columns
        for request in self.scheduler.sequences.running:
            if request.slot == NO_SLOT or columns.computed[request.slot] < request.num_prompt_tokens:
                continue
            computed = columns.computed[request.slot]
            assert columns.known[request.slot] == columns.target[request.slot] == computed + 1
            assert request.num_published == len(request.block_hashes) == computed // BLOCK_SIZE
            assert columns.capacity[request.slot] == BLOCK_SIZE * request.num_blocks >= computed

    def run(self) -> dict[str, EngineOutput]:
        while self.scheduler.has_work:
            self.step()
        assert self.scheduler.stats().num_free_blocks == self.scheduler.stats().num_blocks
        return self.done


@pytest.mark.parametrize("num_blocks", [100, 14])
def test_sequences_get_the_tokens_that_they_get_without_drafts(num_blocks: int):
    """With few blocks sequences are preempted, and compute again what they have, but not the rejected drafts."""
    bench = Bench(num_blocks=num_blocks)
    for index, prompt in enumerate(PROMPTS):
        bench.add(str(index), prompt, max_tokens=20 + index, logprobs=0)
    done = bench.run()
    for index, prompt in enumerate(PROMPTS):
        expected = continuation(prompt, 20 + index)
        output = done[str(index)]
        assert output.token_ids == expected
        assert output.finish_reason is FinishReason.LENGTH
        assert output.logprobs is not None
        assert [entry.token_ids[0] for entry in output.logprobs] == expected
    assert bench.max_valid == 3
    assert (bench.scheduler.stats().num_preemptions > 0) == (num_blocks == 14)


def test_blocks_are_published_as_far_as_their_tokens_are_valid():
    """A later request finds all full blocks of the answer, and events name the tokens that were valid."""
    bench = Bench()
    bench.add("first", PROMPTS[0])
    bench.run()
    sequence = PROMPTS[0] + continuation(PROMPTS[0], 30)
    num_computed = (len(sequence) - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert bench.scheduler.block_events is not None
    events = [event for event in bench.scheduler.block_events.take() if isinstance(event, BlocksStored)]
    assert [token for event in events for token in event.token_ids] == sequence[:num_computed]
    bench.add("second", [*sequence, 5], max_tokens=1)
    assert bench.run()["second"].num_cached_tokens == num_computed


@pytest.mark.parametrize("place", range(1, 12))
def test_a_stop_token_ends_the_sequence_among_the_valid_tokens(place: int):
    """Valid tokens after it are dropped, and blocks that have them are given back."""
    bench = Bench()
    expected = continuation(PROMPTS[1], 30)
    bench.add("other", PROMPTS[2])
    bench.add("ends", PROMPTS[1], stop_token_ids=(expected[place],))
    done = bench.run()
    assert done["ends"].token_ids == expected[: place + 1]
    assert (done["ends"].finish_reason, done["ends"].stop_reason) == (FinishReason.STOP, expected[place])
    assert done["other"].token_ids == continuation(PROMPTS[2], 30)


def test_what_follows_the_tokens_of_a_row_follows_its_last_one():
    """A grammar that is complete after the third token does not end the answer after the first."""
    bench = Bench()
    bench.add("a", PROMPTS[0])
    bench.step()
    while bench.max_valid < 3:
        bench.step(lambda plan, result: replace(result, complete=[0] if result.num_valid[0] == 3 else []))  # type: ignore[index]
    assert bench.done["a"].finish_reason is FinishReason.COMPLETE
    answer = bench.done["a"].token_ids
    assert answer == continuation(PROMPTS[0], len(answer))
    assert not bench.scheduler.has_work


def test_a_row_keeps_the_blocks_of_rejected_drafts_when_tokens_follow_that_must():
    """It then has more blocks than its next tokens need: their number was taken for that of missing ones, below 0."""
    bench = Bench(drafting=DraftSettings(drafter=AnyDrafter(max_tokens=16)))
    bench.add("a", PROMPTS[0])
    bench.step()
    expected = continuation(PROMPTS[0], 30)

    plan = bench.scheduler.schedule()
    assert plan is not None
    assert plan.num_outputs.tolist() == [17]
    forced = StepResult(np.array(expected[1:2], np.int32), num_valid=np.ones(1, np.int32), forced={0: expected[2:6]})
    assert [output.token_ids for output in bench.scheduler.finish_step(plan, forced)] == [expected[1:6]]
    (request,) = bench.scheduler.sequences.running
    num_blocks = request.num_blocks
    plan = bench.scheduler.schedule()
    assert plan is not None
    assert (plan.num_computed.tolist(), plan.num_tokens.tolist()) == ([len(PROMPTS[0]) + 1], [5])
    assert bench.scheduler.sequences.columns.capacity[request.slot] == BLOCK_SIZE * num_blocks == 20


def test_a_row_with_drafts_is_not_planned_ahead():
    """Its next position is known with the result. Other rows go on, and the sequence may end meanwhile."""
    bench = Bench()
    for name in ("a", "b"):
        bench.add(name, PROMPTS[0] if name == "a" else PROMPTS[1])
    bench.step()
    first = bench.scheduler.schedule()
    assert first is not None
    assert first.num_outputs.tolist() == first.num_tokens.tolist() == [3, 3]
    assert bench.scheduler.schedule() is None
    assert bench.scheduler.abort("b") is not None
    bench.finish(first, bench.runner.execute(first))
    second = bench.step()
    num_valid = 1 + num_valid_drafts(len(PROMPTS[0]) + 1, 2)
    assert second.num_computed.tolist() == [len(PROMPTS[0]) + num_valid]
    assert len(bench.done["b"].token_ids) == 1
    assert bench.run()["a"].token_ids == continuation(PROMPTS[0], 30)


def test_a_sequence_that_is_preempted_meanwhile_gets_its_valid_tokens():
    """A stop token ends it while it waits."""
    bench = Bench()
    bench.add("goes on", PROMPTS[0])
    expected = continuation(PROMPTS[1], 4)
    assert num_valid_drafts(len(PROMPTS[1]) + 1, 2) > 0
    bench.add("ends", PROMPTS[1], stop_token_ids=(expected[1],))
    bench.step()
    plan = bench.scheduler.schedule()
    assert plan is not None
    for request in list(bench.scheduler.sequences.running):
        bench.scheduler.sequences.preempt(request)
    bench.finish(plan, bench.runner.execute(plan))
    assert (bench.done["ends"].token_ids, bench.done["ends"].finish_reason) == (expected[:2], FinishReason.STOP)
    num_valid = 1 + num_valid_drafts(len(PROMPTS[0]) + 1, 2)
    assert bench.done["goes on"].token_ids == continuation(PROMPTS[0], 1 + num_valid)
    assert bench.run()["goes on"].token_ids == continuation(PROMPTS[0], 30)


def test_a_result_with_more_tokens_than_are_valid_is_refused():
    bench = Bench()
    bench.add("a", PROMPTS[0])
    bench.step()
    plan = bench.scheduler.schedule()
    assert plan is not None
    result = StepResult(np.array([5, 6, 7], np.int32), num_valid=np.array([2], np.int32))
    with pytest.raises(RuntimeError, match="do not match its outputs"):
        bench.scheduler.finish_step(plan, result)
