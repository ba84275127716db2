from __future__ import annotations

import numpy as np
import pytest

from stoker.engine.api import (
    CacheScope,
    Distribution,
    EngineOutput,
    EngineRequest,
    FinishReason,
    InvalidRequest,
    QueueFull,
    RequestInputs,
    SamplingParams,
    TokenLogprobs,
)
from stoker.engine.core import Scheduler, SchedulerSettings
from stoker.engine.core.admission_control import MAX_RETRY_S, MIN_RETRY_S
from stoker.engine.core.step_planner import MAX_BLOCKED_STEPS
from stoker.engine.step import StepPlan, StepResult

EOS = 2


class Bench:
    """A scheduler and the list of its plans; the test chooses the sampled tokens."""

    def __init__(self, **changes: object) -> None:
        values: dict[str, object] = {
            "num_blocks": 100,
            "block_size": 4,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "max_model_len": 200,
            "eos_token_ids": (EOS,),
        }
        self.scheduler = Scheduler(SchedulerSettings(**(values | changes)))  # type: ignore[arg-type]

    def add(self, name: str, prompt: list[int], priority: int = 0, salt: str = "", **sampling: object) -> None:
        params = SamplingParams(**({"max_tokens": 50} | sampling))  # type: ignore[arg-type]
        self.scheduler.add(
            EngineRequest(request_id=name, inputs=RequestInputs(prompt, params, CacheScope(salt)), priority=priority)
        )

    def schedule(self) -> StepPlan:
        plan = self.scheduler.schedule()
        assert plan is not None
        return plan

    def finish(self, plan: StepPlan, token: int = 9) -> dict[str, EngineOutput]:
        """Every sampled row gets `token`."""
        result = StepResult(token_ids=np.full(plan.num_outputs.sum(), token, np.int32))
        outputs = self.scheduler.finish_step(plan, result)
        assert len({output.request_id for output in outputs}) == len(outputs)
        return {output.request_id: output for output in outputs}

    def step(self, token: int = 9) -> tuple[StepPlan, dict[str, EngineOutput]]:
        plan = self.schedule()
        return plan, self.finish(plan, token)

    def run(self, token: int = 9) -> dict[str, list[EngineOutput]]:
        """Until all have ended."""
        outputs: dict[str, list[EngineOutput]] = {}
        while self.scheduler.has_work:
            for name, output in self.step(token)[1].items():
                outputs.setdefault(name, []).append(output)
        return outputs

    @property
    def num_free(self) -> int:
        return self.scheduler.stats().num_free_blocks


def rows(plan: StepPlan) -> list[tuple[int, int, int]]:
    """(num_computed, num_tokens, num_outputs) of each row."""
    columns = (plan.num_computed.tolist(), plan.num_tokens.tolist(), plan.num_outputs.tolist())
    return list(zip(*columns, strict=True))


def prompt(num_tokens: int, first: int = 100) -> list[int]:
    return list(range(first, first + num_tokens))


# ---- batching


def test_a_prompt_is_computed_and_then_one_token_per_step():
    bench = Bench()
    bench.add("a", prompt(7))
    plan, outputs = bench.step(token=9)
    assert rows(plan) == [(0, 7, True)]
    admission = plan.admissions[0]
    assert (admission.token_ids, admission.num_prompt_tokens) == (prompt(7), 7)
    assert len(admission.block_ids[0]) == 2
    assert len(plan.block_ids) == 0
    assert outputs["a"].token_ids == [9]
    plan, _ = bench.step()
    assert (rows(plan), plan.admissions, len(plan.block_ids)) == ([(7, 1, True)], [], 0)
    plan, _ = bench.step()
    assert rows(plan) == [(8, 1, True)]
    assert plan.block_slots.tolist() == [admission.slot]  # the ninth token needs a third block
    assert plan.block_ids.tolist()[0] not in admission.block_ids[0]


def test_a_new_request_joins_the_running_ones_in_their_step():
    bench = Bench()
    bench.add("a", prompt(5))
    bench.step()
    bench.add("b", prompt(6, first=500))
    plan, outputs = bench.step()
    assert rows(plan) == [(5, 1, True), (0, 6, True)]
    assert outputs.keys() == {"a", "b"}


def test_slots_are_released_and_used_again():
    bench = Bench(max_num_seqs=1)
    bench.add("a", prompt(3), max_tokens=1)
    bench.add("b", prompt(3), max_tokens=1)
    first, _ = bench.step()
    assert first.num_rows == 1  # there is one slot
    second, outputs = bench.step()
    assert second.released_slots == [first.admissions[0].slot]
    assert second.admissions[0].slot == first.admissions[0].slot
    assert outputs["b"].finish_reason is FinishReason.LENGTH
    assert bench.scheduler.schedule() is None


def test_a_long_prompt_is_computed_in_chunks_and_sampled_at_its_end():
    bench = Bench(max_num_batched_tokens=10)
    bench.add("a", prompt(19))
    plans = [bench.schedule()]
    assert bench.finish(plans[0]) == {}
    plans += [bench.step()[0] for _ in range(2)]
    assert [rows(plan) for plan in plans] == [[(0, 8, False)], [(8, 8, False)], [(16, 3, True)]]
    assert [len(plan.block_ids) for plan in plans] == [0, 2, 1]  # blocks come with the chunk that needs them


def test_decode_rows_come_before_prefills():
    bench = Bench(max_num_batched_tokens=8)
    bench.add("a", prompt(3))
    bench.step()
    bench.add("b", prompt(40, first=500))
    for _ in range(4):
        plan, outputs = bench.step()
        assert plan.num_tokens.tolist()[0] == 1
        assert "a" in outputs


def test_a_short_prompt_is_not_delayed_by_long_ones_before_it():
    bench = Bench(max_num_batched_tokens=64)
    bench.add("long", prompt(150))
    bench.add("longer", prompt(190, first=1000))
    bench.add("short", prompt(5, first=2000))
    plan, outputs = bench.step()
    # half of the budget, half of what is left, and what the short one leaves goes back to the first
    assert plan.num_tokens.tolist() == [40, 16, 5]
    assert outputs.keys() == {"short"}


def test_a_prompt_of_at_most_half_the_budget_is_not_cut_for_others():
    bench = Bench(max_num_batched_tokens=64)
    for index in range(3):
        bench.add(str(index), prompt(30, first=1000 * index))
    plan, _ = bench.step()
    assert plan.num_tokens.tolist() == [30, 30, 4]


def test_a_single_long_prompt_gets_the_whole_budget():
    bench = Bench(max_num_batched_tokens=64)
    bench.add("long", prompt(150))
    assert bench.step()[0].num_tokens.tolist() == [64]


def test_without_chunked_prefill_a_prompt_runs_whole_or_waits():
    bench = Bench(max_num_batched_tokens=20, max_model_len=20, enable_chunked_prefill=False)
    bench.add("a", prompt(12))
    bench.add("b", prompt(12, first=500))
    bench.add("c", prompt(2, first=900))
    assert rows(bench.step()[0]) == [(0, 12, True)]  # b does not fit, and c does not overtake it
    assert rows(bench.step()[0]) == [(12, 1, True), (0, 12, True), (0, 2, True)]


def test_without_chunked_prefill_decode_rows_pause_for_a_prompt_that_does_not_fit():
    """A prompt as long as the budget would otherwise wait until no other request runs."""
    bench = Bench(max_num_batched_tokens=20, max_model_len=20, enable_chunked_prefill=False)
    bench.add("a", prompt(2))
    bench.add("b", prompt(2))
    bench.step()
    bench.add("long", prompt(19, first=500), max_tokens=1)
    bench.add("short", prompt(1))
    for _ in range(MAX_BLOCKED_STEPS + 1):
        assert bench.step()[1].keys() == {"a", "b"}
    assert bench.step()[1].keys() == {"long", "short"}
    assert bench.step()[1].keys() == {"a", "b", "short"}


def test_decode_rows_do_not_pause_for_a_prompt_that_memory_has_no_space_for():
    """In the step meant for the blocked prompt a larger one comes first, which does not fit into the KV cache."""
    bench = Bench(
        num_blocks=82,
        block_size=1,
        max_num_batched_tokens=20,
        max_model_len=20,
        enable_chunked_prefill=False,
        enable_prefix_caching=False,
        scheduling_policy="priority",
    )
    answers = {str(index) for index in range(6)}
    for name in answers:
        bench.add(name, prompt(1))
    bench.step()
    bench.add("blocked", prompt(15))  # 6 of 20 tokens are for the answers
    for _ in range(MAX_BLOCKED_STEPS + 1):
        assert bench.step()[1].keys() == answers
    assert bench.num_free == 22
    bench.add("large", prompt(19), priority=-1)  # needs 19 blocks and one more for each answer
    for _ in range(3):
        assert bench.step()[1].keys() == answers


# ---- prefix cache


def test_requests_that_arrive_together_share_their_prefix_in_the_same_step():
    bench = Bench()
    bench.add("a", [*prompt(8), 1])
    bench.add("b", [*prompt(8), 2])
    plan, outputs = bench.step()
    assert rows(plan) == [(0, 9, True), (8, 1, True)]
    one, other = (admission.block_ids[0] for admission in plan.admissions)
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert [outputs[name].num_cached_tokens for name in "ab"] == [0, 8]


def test_generated_tokens_are_cached_like_prompts():
    bench = Bench()
    bench.add("a", prompt(6), max_tokens=7)
    bench.run(token=9)
    bench.add("next turn", [*prompt(6), *[9] * 7, 5])
    plan, outputs = bench.step()
    assert rows(plan) == [(12, 2, True)]  # the last of the seven was never computed
    assert outputs["next turn"].num_cached_tokens == 12


def test_the_last_token_of_a_cached_prompt_is_computed_again():
    bench = Bench()
    bench.add("a", prompt(8), max_tokens=1)
    bench.run()
    bench.add("b", prompt(8))
    assert rows(bench.step()[0]) == [(4, 4, True)]


def test_requests_with_different_salts_share_no_blocks():
    bench = Bench()
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        bench.add(name, prompt(9), salt=salt)
    assert rows(bench.step()[0]) == [(0, 9, True), (0, 9, True), (8, 1, True)]


def test_prefix_caching_can_be_switched_off():
    bench = Bench(enable_prefix_caching=False)
    bench.add("a", prompt(9))
    bench.add("b", prompt(9))
    assert rows(bench.step()[0]) == [(0, 9, True), (0, 9, True)]
    assert bench.scheduler.stats().prefix_queries == 0


def test_a_running_prefill_continues_from_blocks_that_another_has_computed():
    bench = Bench(max_num_batched_tokens=16)
    bench.add("a", prompt(32))
    bench.add("b", [*prompt(31), 7])
    plan, _ = bench.step()
    assert rows(plan) == [(0, 8, False), (8, 8, False)]  # b finds what a computes in this very step
    plan, _ = bench.step()
    assert rows(plan) == [(16, 8, False), (24, 8, True)]  # a continues after b's blocks, and b after a's
    assert plan.block_slots.tolist() == [*[plan.slots[0]] * 4, *[plan.slots[1]] * 4]
    plan, _ = bench.step()
    assert rows(plan) == [(32, 1, True), (28, 4, True)]
    assert bench.scheduler.stats().prefix_hits == 8 + 8 + 8 + 4


def test_prompt_tokens_that_are_new_in_the_cache_are_counted_once():
    """`cache_creation_input_tokens` was the constant 0."""
    bench = Bench()
    bench.add("a", prompt(9), max_tokens=1)
    bench.add("same", prompt(8), max_tokens=1)  # its second block is computed again and is cached already
    bench.add("longer", prompt(14), max_tokens=6)  # four blocks more; the last one is of generated tokens too
    found = bench.run()
    counts = {name: (each[0].num_cached_tokens, each[0].num_newly_cached_tokens) for name, each in found.items()}
    assert counts == {"a": (0, 8), "same": (4, 0), "longer": (8, 4)}
    assert found["longer"][-1].num_newly_cached_tokens in (0, 4)  # not of generated tokens
    bench = Bench(enable_prefix_caching=False)
    bench.add("a", prompt(9), max_tokens=1)
    assert bench.run()["a"][0].num_newly_cached_tokens == 0


def test_a_cached_block_is_found_until_it_is_reused():
    bench = Bench(num_blocks=4, max_model_len=16)
    bench.add("a", prompt(9), max_tokens=1)
    bench.run()
    bench.add("other", prompt(7, first=500), max_tokens=1)  # takes the two blocks that are not cached
    bench.run()
    bench.add("b", prompt(9), max_tokens=1)
    assert bench.run()["b"][0].num_cached_tokens == 8
    bench.add("large", prompt(15, first=900), max_tokens=1)  # takes all
    bench.run()
    bench.add("c", prompt(9), max_tokens=1)
    assert bench.run()["c"][0].num_cached_tokens == 0


def entry(token_id: int) -> TokenLogprobs:
    return TokenLogprobs([token_id], [-1.0], 1)


def test_prompt_logprobs_are_collected_over_chunks_and_sent_once():
    bench = Bench(max_num_batched_tokens=8)
    bench.add("warm", prompt(10), max_tokens=1)
    bench.run()
    bench.add("a", prompt(10), prompt_logprobs=0)
    for expected in ([(0, 8, False)], [(8, 2, True)]):  # nothing is taken from the cache
        plan = bench.schedule()
        assert rows(plan) == expected
        start, count, num_outputs = expected[0]
        result = StepResult(
            token_ids=np.array([9] * num_outputs, np.int32),
            prompt_logprobs={0: [entry(position) for position in range(start + 1, min(start + count + 1, 10))]},
            logprobs={0: entry(9)} if num_outputs else {},
        )
        outputs = bench.scheduler.finish_step(plan, result)
    assert outputs.records[0].prompt_logprobs == [None, *(entry(position) for position in range(1, 10))]
    assert outputs.records[0].logprobs == [entry(9)]
    assert bench.step()[1]["a"].prompt_logprobs is None


# ---- memory


def test_when_blocks_run_out_the_latest_arrival_is_preempted_and_continues_later():
    bench = Bench(num_blocks=6, max_model_len=24)
    bench.add("a", prompt(7), max_tokens=12)
    bench.add("b", prompt(7, first=500), max_tokens=12)
    outputs = bench.run()
    stats = bench.scheduler.stats()
    assert (stats.num_preemptions, stats.request_preemptions.buckets[0]) == (1, (1, 2))
    assert (stats.request_preemptions.count, stats.request_preemptions.total) == (2, 1)
    assert {name: len(tokens) for name, tokens in outputs.items()} == {"a": 12, "b": 12}
    assert bench.num_free == 6


def test_a_preempted_sequence_resumes_with_its_sampled_tokens_mostly_from_the_cache():
    bench = Bench(num_blocks=6, max_model_len=24)
    bench.add("a", prompt(7), max_tokens=12)
    bench.add("b", prompt(7, first=500), max_tokens=12)
    admissions = []
    while bench.scheduler.has_work:
        plan, _ = bench.step(token=9)
        admissions += [(admission, rows(plan)[-1]) for admission in plan.admissions]
    (_, _), (_, _), (resumed, row) = admissions
    num_sampled = len(resumed.token_ids) - 7
    assert num_sampled > 0
    assert resumed.token_ids == [*prompt(7, first=500), *[9] * num_sampled]
    assert resumed.num_prompt_tokens == 7
    assert row == (4, len(resumed.token_ids) - 4, True)  # the first sequence needed the places of the tail


def test_the_lowest_priority_is_preempted_first():
    bench = Bench(num_blocks=6, max_model_len=24, scheduling_policy="priority")
    bench.add("low", prompt(7), priority=1, max_tokens=12)
    bench.add("high", prompt(7, first=500), priority=0, max_tokens=12)
    ended = [
        name for _ in range(40) if bench.scheduler.has_work for name, o in bench.step()[1].items() if o.finish_reason
    ]
    assert ended == ["high", "low"]
    assert bench.scheduler.stats().num_preemptions == 1


def test_priority_decides_who_is_admitted():
    bench = Bench(max_num_seqs=1, scheduling_policy="priority")
    for name, priority in (("later", 5), ("soon", 1), ("now", -3)):
        bench.add(name, prompt(3), priority=priority, max_tokens=1)
    assert list(bench.run()) == ["now", "soon", "later"]


def test_running_prefills_are_planned_by_priority_not_by_admission():
    bench = Bench(max_num_batched_tokens=16, scheduling_policy="priority")
    bench.add("late", prompt(60), priority=1)
    bench.step()
    bench.add("urgent", prompt(60, first=500), priority=0)
    assert bench.step()[0].slots.tolist() == [0, 1]  # the urgent one is admitted
    assert bench.step()[0].slots.tolist() == [1, 0]


def test_a_sequence_that_outgrows_the_cache_ends_by_length():
    bench = Bench(num_blocks=3, max_model_len=200)
    bench.add("a", prompt(5), max_tokens=None)
    outputs = bench.run()["a"]
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert 5 + len(outputs) == 3 * 4 + 1  # the last token needs no place


def test_requests_beyond_the_cache_are_refused():
    bench = Bench(num_blocks=3)
    with pytest.raises(InvalidRequest) as caught:
        bench.add("a", prompt(13))
    assert caught.value.code == "context_length_exceeded"
    assert not bench.scheduler.has_work


def test_a_prompt_waits_until_the_cache_can_hold_all_of_it():
    bench = Bench(num_blocks=6, max_model_len=24)
    bench.add("a", prompt(9), max_tokens=3)
    bench.step()
    bench.add("b", prompt(13, first=500), max_tokens=1)  # four blocks; three are free
    plan, _ = bench.step()
    assert plan.num_rows == 1
    assert bench.run()["b"][0].finish_reason is FinishReason.LENGTH


# ---- prompts computed in part


@pytest.mark.effect("scheduler.max_num_partial_prefills")
def test_no_more_prompts_than_allowed_are_computed_in_part():
    for limit, in_part in ((1, 1), (2, 2), (3, 3)):
        bench = Bench(num_blocks=200, max_num_batched_tokens=64, max_num_partial_prefills=limit)
        for index in range(3):
            bench.add(f"long {index}", prompt(150, first=1000 * (index + 1)))
        plan = bench.schedule()
        assert plan.num_rows == in_part
        assert plan.num_batched_tokens == 64  # the budget is used all the same


def test_a_prompt_that_fits_whole_does_not_count_as_computed_in_part():
    bench = Bench(max_num_batched_tokens=64, max_num_partial_prefills=1)
    bench.add("long", prompt(150))
    bench.add("short", prompt(5, first=1000))
    bench.add("next", prompt(150, first=2000))
    plan, outputs = bench.step()
    assert plan.num_rows == 2
    assert outputs.keys() == {"short"}


@pytest.mark.effect("scheduler.max_long_partial_prefills", "scheduler.long_prefill_token_threshold")
def test_short_prompts_pass_long_ones_that_are_at_their_limit():
    def order(**limits: int) -> list[int]:
        """Prompt lengths in the order of admission, while the first prompt is computed."""
        bench = Bench(max_num_batched_tokens=20, max_num_partial_prefills=2, **limits)
        for index, length in enumerate((100, 120, 30, 28)):
            bench.add(str(index), prompt(length, first=1000 * (index + 1)), max_tokens=1)
        lengths: list[int] = []
        while len(lengths) < 4:
            lengths += [len(admission.token_ids) for admission in bench.step()[0].admissions]
        return lengths

    assert order(max_long_partial_prefills=2, long_prefill_token_threshold=50) == [100, 120, 30, 28]
    assert order(max_long_partial_prefills=1, long_prefill_token_threshold=50) == [100, 30, 28, 120]
    assert order(max_long_partial_prefills=1, long_prefill_token_threshold=110) == [100, 120, 30, 28]


def test_a_long_prompt_that_was_passed_comes_next():
    bench = Bench(
        max_num_seqs=2, max_num_batched_tokens=16, max_long_partial_prefills=1, long_prefill_token_threshold=9
    )
    bench.add("first", prompt(40), max_tokens=1)
    bench.add("second", prompt(40, first=1000), max_tokens=1)
    for index in range(30):
        bench.add(f"short {index}", prompt(3, first=2000 + 10 * index), max_tokens=1)
    ended: list[str] = []
    while "second" not in ended:
        ended += bench.step()[1]
    assert ended.index("first") < ended.index("second") < 12  # most of the short ones come after it


# ---- queue


def test_a_full_queue_refuses_and_keeps_no_state():
    bench = Bench(max_num_seqs=1, max_queued_requests=2)
    for name in ("runs", "waits", "waits too"):
        bench.add(name, prompt(3), max_tokens=1)
    with pytest.raises(QueueFull) as caught:
        bench.add("late", prompt(3))
    assert caught.value.retry_after_s == MIN_RETRY_S
    assert bench.run().keys() == {"runs", "waits", "waits too"}
    bench.add("late", prompt(3))


def test_requests_that_wait_for_memory_count_as_waiting_though_slots_are_free():
    """Once the queue took one more request per free slot, even without memory for them."""
    bench = Bench(num_blocks=10, max_num_seqs=8, max_queued_requests=2)
    bench.add("large", prompt(30))
    bench.step()
    for name in ("waits", "waits too"):
        bench.add(name, prompt(30, first=500))
    bench.step()
    with pytest.raises(QueueFull):
        bench.add("late", prompt(3, first=900))


def test_the_queue_is_bounded_in_prompt_tokens_but_takes_any_single_request():
    bench = Bench(max_queued_tokens=10)
    bench.add("large", prompt(30))
    with pytest.raises(QueueFull):
        bench.add("small", prompt(1))
    bench.step()
    bench.add("small", prompt(1))
    bench.add("nine", prompt(9))
    with pytest.raises(QueueFull):
        bench.add("one more", prompt(1))


def test_the_retry_estimate_follows_the_rate_of_finished_requests():
    bench = Bench(max_num_seqs=1, max_queued_requests=0)
    for step_time_s, expected in ((3.0, 3.0), (1000.0, MAX_RETRY_S)):
        bench.add("a", prompt(3), max_tokens=1)
        plan = bench.schedule()
        bench.scheduler.finish_step(plan, StepResult(token_ids=np.array([9], np.int32)), step_time_s)
        bench.add("b", prompt(3))
        with pytest.raises(QueueFull) as caught:
            bench.add("c", prompt(3))
        assert caught.value.retry_after_s == expected
        bench.scheduler.abort("b")


def test_two_live_requests_cannot_have_one_id():
    bench = Bench()
    bench.add("a", prompt(3), max_tokens=1)
    with pytest.raises(InvalidRequest, match="'a' is in use"):
        bench.add("a", prompt(3))
    bench.run()
    bench.add("a", prompt(3))


# ---- abort


def test_abort_of_a_waiting_request():
    bench = Bench(max_num_seqs=1)
    bench.add("a", prompt(3), max_tokens=2)
    bench.add("b", prompt(3))
    output = bench.scheduler.abort("b")
    assert output is not None
    assert output.finish_reason is FinishReason.ABORT
    assert bench.run().keys() == {"a"}


def test_abort_of_a_running_request_frees_its_blocks_immediately():
    bench = Bench()
    bench.add("a", prompt(30))
    plan, _ = bench.step()
    bench.scheduler.abort("a")
    assert bench.num_free == 100
    assert not bench.scheduler.has_work
    bench.add("b", prompt(3))
    assert bench.schedule().released_slots == [plan.admissions[0].slot]


def test_abort_during_a_step_frees_blocks_when_the_step_is_finished():
    bench = Bench()
    bench.add("a", prompt(30))
    plan = bench.schedule()
    bench.scheduler.abort("a")
    assert bench.scheduler.abort("a") is None
    assert bench.num_free == 100 - 8
    assert bench.scheduler.has_work  # the step is still to be finished
    assert bench.finish(plan) == {}
    assert bench.num_free == 100
    assert not bench.scheduler.has_work


def test_abort_of_an_unknown_request():
    assert Bench().scheduler.abort("unknown") is None


# ---- overlapping steps


def test_a_decode_row_is_planned_before_its_input_token_is_known():
    bench = Bench()
    bench.add("a", prompt(7))
    first, second = bench.schedule(), bench.schedule()
    assert (rows(first), rows(second)) == ([(0, 7, True)], [(7, 1, True)])
    assert bench.finish(first, token=5)["a"].token_ids == [5]
    third = bench.schedule()
    assert rows(third) == [(8, 1, True)]
    assert bench.finish(second, token=6)["a"].token_ids == [6]
    assert bench.finish(third, token=7)["a"].token_ids == [7]


@pytest.mark.parametrize("num_tokens", [1, 4, 9])
@pytest.mark.parametrize("sampled", [9, EOS])
def test_max_tokens_0_computes_the_prompt_and_returns_no_token(num_tokens: int, sampled: int):
    """In chunks of 4: the last chunk of a prompt of 9 is one token, which looks like the row of a decode."""
    bench = Bench(max_num_batched_tokens=4, max_num_seqs=4)
    bench.add("a", prompt(num_tokens), max_tokens=0)
    (output,) = bench.run(sampled)["a"]
    assert (output.token_ids, output.finish_reason) == ([], FinishReason.LENGTH)
    assert not bench.scheduler.has_work


def test_no_row_is_planned_beyond_max_tokens():
    bench = Bench()
    bench.add("a", prompt(7), max_tokens=2)
    first, second = bench.schedule(), bench.schedule()
    assert bench.scheduler.schedule() is None
    assert bench.scheduler.has_work
    assert bench.finish(first)["a"].finish_reason is None
    assert bench.scheduler.schedule() is None
    assert bench.finish(second)["a"].finish_reason is FinishReason.LENGTH
    assert not bench.scheduler.has_work


def test_a_token_sampled_after_the_end_is_dropped_and_blocks_are_released_after_its_step():
    bench = Bench()
    bench.add("a", prompt(7))
    bench.add("b", prompt(5, first=500))
    first, second = bench.schedule(), bench.schedule()
    result = StepResult(token_ids=np.array([EOS, 9], np.int32))
    outputs = bench.scheduler.finish_step(first, result)
    assert [output.finish_reason for output in outputs] == [FinishReason.STOP, None]
    assert bench.num_free == 100 - 4  # the queued step still writes a block of a
    bench.add("c", prompt(7, first=900))
    third = bench.schedule()
    assert third.released_slots == [first.slots[0]]
    assert third.admissions[0].slot == first.slots[0]  # a slot has a new owner while a row of the old one is queued
    assert not set(third.admissions[0].block_ids[0]) & set(first.admissions[0].block_ids[0])
    assert bench.finish(second).keys() == {"b"}
    assert bench.num_free == 100 - 4
    assert bench.finish(third).keys() == {"b", "c"}


def test_a_sequence_preempted_while_its_token_is_sampled_keeps_the_token():
    bench = Bench(num_blocks=5, max_model_len=20)
    bench.add("a", prompt(7), max_tokens=9)
    bench.add("b", prompt(7, first=500), max_tokens=9)
    plans = [bench.schedule(), bench.schedule(), bench.schedule()]
    # both need a third block in the third step, and one is left
    assert [rows(plan) for plan in plans[1:]] == [[(7, 1, True), (7, 1, True)], [(8, 1, True)]]
    assert bench.scheduler.stats().num_preemptions == 1
    assert bench.num_free == 0
    sampled = [name for plan in plans for name in sorted(bench.finish(plan))]
    assert sampled == ["a", "b", "a", "b", "a"]
    assert bench.num_free == 2
    outputs = bench.run()
    assert (len(outputs["a"]), len(outputs["b"])) == (9 - 3, 9 - 2)


def test_a_preempted_sequence_is_not_admitted_while_a_step_still_samples_its_token():
    """Even if there is memory for it: an admission has all tokens, and one is not known yet."""
    bench = Bench(num_blocks=18, max_num_seqs=3, max_num_batched_tokens=4, scheduling_policy="priority")
    bench.add("a", prompt(2), priority=1)
    bench.add("b", prompt(2, first=500), priority=2)
    bench.step()
    bench.add("long", prompt(48, first=900), priority=0)
    plans = [bench.schedule()]
    while not bench.scheduler.stats().num_preemptions:
        plans.append(bench.schedule())
        if not bench.scheduler.stats().num_preemptions:
            bench.finish(plans.pop(0))
    bench.scheduler.abort("long")  # what was reserved for it is free now
    plans.append(bench.schedule())
    assert (plans[-1].num_rows, plans[-1].admissions) == (1, [])
    assert bench.finish(plans.pop(0), token=7)["b"].token_ids == [7]
    resumed = bench.schedule().admissions[0]
    assert resumed.token_ids[:2] == [500, 501]
    assert resumed.token_ids[-1] == 7


def test_steps_are_finished_in_order_and_with_their_own_results():
    bench = Bench()
    bench.add("a", prompt(7))
    first, second = bench.schedule(), bench.schedule()
    with pytest.raises(RuntimeError, match="step 1 is not the oldest one in flight"):
        bench.finish(second)
    for token_ids in ([], [9, 9]):
        with pytest.raises(RuntimeError, match="tokens of step 0 do not match its outputs"):
            bench.scheduler.finish_step(first, StepResult(np.array(token_ids, np.int32)))
    bench.finish(first)
    bench.finish(second)


# ---- failure


def test_a_failed_step_ends_its_requests_and_no_others():
    bench = Bench(max_num_seqs=1)
    bench.add("a", prompt(9))
    bench.add("waits", prompt(9))
    plan = bench.schedule()
    output = bench.scheduler.fail_step(plan, "out of memory")[0]
    assert (output.request_id, output.finish_reason, output.error) == ("a", FinishReason.ERROR, "out of memory")
    assert bench.num_free == 100
    plan, _ = bench.step()
    assert rows(plan) == [(0, 9, True)]  # what the failed step may have written is not used
    assert bench.run()["waits"][-1].finish_reason is FinishReason.LENGTH


def test_a_row_that_fails_ends_its_request_and_no_other():
    bench = Bench()
    bench.add("good", prompt(3))
    bench.add("bad", prompt(3, first=500))
    plan = bench.schedule()
    result = StepResult(token_ids=np.array([9, 9], np.int32), errors={1: "its processor failed"})
    outputs = {output.request_id: output for output in bench.scheduler.finish_step(plan, result)}
    assert (outputs["bad"].finish_reason, outputs["bad"].error) == (FinishReason.ERROR, "its processor failed")
    assert outputs["bad"].token_ids == []
    assert outputs["good"].token_ids == [9]
    assert bench.step()[1].keys() == {"good"}


def test_slots_released_in_a_failed_step_are_released_again():
    bench = Bench()
    bench.add("a", prompt(3), max_tokens=1)
    bench.add("b", prompt(3), max_tokens=9)
    slots = bench.step()[0].slots.tolist()
    failed = bench.schedule()
    assert failed.released_slots == slots[:1]
    bench.scheduler.fail_step(failed, "broken")
    bench.add("c", prompt(3))
    assert sorted(bench.schedule().released_slots) == sorted(slots)


# ---- seeds and numbers


def test_requests_without_a_seed_get_reproducible_different_ones():
    def seeds(engine_seed: int) -> list[int]:
        bench = Bench(seed=engine_seed)
        bench.add("a", prompt(3))
        bench.add("b", prompt(3))
        bench.add("c", prompt(3), seed=0)
        return [admission.seed for admission in bench.schedule().admissions]

    first = seeds(1)
    assert first == seeds(1)
    assert first[2] == 0
    assert len({*first, *seeds(2)}) == 5
    assert all(0 <= seed < 2**63 for seed in first)


def test_what_waits_for_its_grammar_is_deferred():
    bench = Bench(max_num_seqs=1)
    bench.add("a", prompt(3))
    bench.step()
    bench.add("b", prompt(3, first=500))
    waiting = EngineRequest(request_id="c", inputs=RequestInputs(prompt(3), SamplingParams()), is_ready=lambda: False)
    bench.scheduler.add(waiting)
    stats = bench.scheduler.stats()
    assert (stats.num_waiting, stats.num_deferred) == (2, 1)
    bench.scheduler.abort("c")
    assert (bench.scheduler.stats().num_waiting, bench.scheduler.stats().num_deferred) == (1, 0)


def test_stats_count_what_happened():
    bench = Bench(max_num_seqs=2, step_token_limits=(1, 10, 64))
    for name in "abc":
        bench.add(name, prompt(9), max_tokens=2)
    bench.finish(bench.schedule())
    stats = bench.scheduler.stats()
    assert (stats.num_step_tokens, stats.step_tokens) == (10, ((1, 0), (10, 1), (64, 1)))  # the second: 8 tokens cached
    assert stats.iteration_tokens == Distribution(((1, 0), (10, 0), (64, 1)), 1, 12)  # and two first tokens
    assert (stats.num_running, stats.num_waiting, stats.num_steps) == (2, 1, 1)
    assert (stats.prefix_queries, stats.prefix_hits) == (18, 8)
    assert (stats.num_blocks, stats.num_free_blocks) == (100, 96)


# ---- the share of prompts


@pytest.mark.effect("scheduler.max_prefill_share")
def test_a_long_prompt_leaves_answers_their_share_of_the_step():
    bench = Bench(max_num_batched_tokens=32, max_prefill_share=0.25)
    bench.add("a", prompt(3))
    bench.step()
    bench.add("b", prompt(40, first=500))
    pieces = [rows(bench.step()[0])[1][1] for _ in range(3)]
    assert pieces == [8, 8, 8]


@pytest.mark.effect("scheduler.max_prefill_share")
def test_prompts_get_the_whole_step_while_no_answer_runs():
    bench = Bench(max_num_batched_tokens=32, max_prefill_share=0.25)
    bench.add("a", prompt(40))
    assert rows(bench.step()[0]) == [(0, 32, False)]


def test_the_smallest_share_is_one_token_per_step():
    bench = Bench(max_num_batched_tokens=32, max_prefill_share=0.001)
    bench.add("a", prompt(3))
    bench.step()
    bench.add("b", prompt(3, first=500))
    assert [rows(bench.step()[0])[1] for _ in range(3)] == [(0, 1, False), (1, 1, False), (2, 1, True)]


def test_a_prompt_that_must_be_computed_whole_is_not_limited_by_the_share():
    bench = Bench(max_num_batched_tokens=64, max_model_len=60, max_prefill_share=0.25, enable_chunked_prefill=False)
    bench.add("a", prompt(3))
    bench.step()
    bench.add("b", prompt(40, first=500))
    assert rows(bench.step()[0])[1] == (0, 40, True)


def test_chunks_fill_a_step_up_to_one_of_its_sizes():
    bench = Bench(max_num_batched_tokens=32, max_prefill_share=0.75, step_sizes=(8, 12, 16, 24, 32))
    bench.add("a", prompt(3))
    bench.add("b", prompt(3, first=500))
    bench.step()
    bench.add("c", prompt(40, first=600))
    assert [rows(bench.step()[0])[2][1] for _ in range(2)] == [20, 20]  # of 24 beside answers, 22, in whole blocks


def test_a_step_below_the_smallest_size_is_filled_by_the_share():
    bench = Bench(max_num_batched_tokens=32, max_prefill_share=0.1, step_sizes=(8, 32))
    bench.add("a", prompt(3))
    bench.step()
    bench.add("b", prompt(40, first=500))
    assert rows(bench.step()[0])[1] == (0, 3, False)


# ---- columns


def test_a_plain_token_is_in_the_columns():
    bench = Bench()
    for route, name in enumerate(["a", "b"], start=5):
        request = EngineRequest(request_id=name, inputs=RequestInputs(prompt(3), SamplingParams()), route=route)
        bench.scheduler.add(request)
    plan = bench.schedule()
    result = StepResult(token_ids=np.array([7, 8], np.int32))
    first = bench.scheduler.finish_step(plan, result)
    assert [record.request_id for record in first.records] == ["a", "b"]  # with what the prefix cache had of them
    second = bench.scheduler.finish_step(bench.schedule(), result)
    assert (second.records, second.token_ids.tolist(), second.routes.tolist()) == ([], [7, 8], [5, 6])
    assert [(output.request_id, output.token_ids) for output in second] == [("a", [7]), ("b", [8])]
    third = bench.scheduler.finish_step(bench.schedule(), StepResult(token_ids=np.array([EOS, 9], np.int32)))
    assert [(record.request_id, record.finish_reason) for record in third.records] == [("a", FinishReason.STOP)]
    assert third.routes.tolist() == [6]


def test_a_stop_token_of_one_request_does_not_end_another():
    bench = Bench()
    bench.add("a", prompt(3), stop_token_ids=[30])
    bench.add("b", prompt(3, first=500))
    bench.step()
    outputs = bench.step(token=30)[1]
    assert outputs["a"].finish_reason is FinishReason.STOP
    assert outputs["a"].stop_reason == 30
    assert outputs["b"].finish_reason is None


def test_a_prompt_whose_last_token_is_computed_alone_is_published_with_its_own_hash():
    """Its block once got the hash of tokens that the slot's previous sequence had sampled."""
    bench = Bench(max_num_batched_tokens=3, max_num_seqs=1)
    bench.add("before", prompt(3, first=500), max_tokens=6)
    bench.run()
    bench.add("a", prompt(8), max_tokens=1)
    assert [rows(bench.step()[0])[0][1] for _ in range(4)] == [3, 1, 3, 1]
    bench.add("b", prompt(9), max_tokens=1)
    assert bench.run()["b"][0].num_cached_tokens == 8
