"""Requests that are pooled: what the scheduler accepts, and when their prompts are computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker.engine.api import (
    EngineOutput,
    EngineRequest,
    FinishReason,
    InvalidRequest,
    PoolingParams,
    RequestInputs,
    SamplingParams,
    Vectors,
)
from stoker.engine.core.settings import PoolingSettings
from stoker.engine.core.step_planner import MAX_BLOCKED_STEPS
from stoker.engine.step import StepPlan, StepResult

from .test_scheduler import EOS, Bench, prompt, rows

TASKS = PoolingSettings({"embed": False, "token_embed": True})
ENCODER = PoolingSettings({"embed": True}, generates=False)


class PoolingBench(Bench):
    def __init__(self, pooling: PoolingSettings = TASKS, **changes: object) -> None:
        super().__init__(pooling=pooling, **changes)

    def pool(self, name: str, num_tokens: int, *tasks: str, begin: int = 100, **params: Any) -> None:
        task = PoolingParams(tasks or ("embed",), **params)
        self.scheduler.add(EngineRequest(request_id=name, inputs=RequestInputs(prompt(num_tokens, begin), task)))

    def finish(self, plan: StepPlan, token: int = 9) -> dict[str, EngineOutput]:
        """Every row whose request is pooled gets a vector, which has the number of its step."""
        in_flight = next(iter(self.scheduler.sequences.steps))
        vectors = {
            row: {task: Vectors(1, np.array([plan.step], "<f4").tobytes()) for task in request.inputs.task.tasks}
            for row, request in enumerate(in_flight.requests)
            if isinstance(request.inputs.task, PoolingParams) and plan.num_outputs[row]
        }
        tokens = np.full(int(plan.num_outputs.sum()), token, np.int32)
        outputs = self.scheduler.finish_step(plan, StepResult(tokens, vectors=vectors))
        return {output.request_id: output for output in outputs}


def test_vectors_of_a_row_end_its_request_beside_others_that_generate():
    """A prompt in chunks has an output only in the last one."""
    bench = PoolingBench(max_num_batched_tokens=8)
    bench.add("generates", prompt(3))
    bench.step()
    bench.pool("pools", 9, begin=500)
    assert "pools" not in bench.step()[1]
    plan, outputs = bench.step(token=EOS + 5)
    pooled = outputs["pools"]
    assert rows(plan) == [(4, 1, 1), (4, 5, 1)]
    assert pooled.vectors == {"embed": Vectors(1, np.array([plan.step], "<f4").tobytes())}
    assert (pooled.token_ids, pooled.finish_reason) == ([], FinishReason.STOP)
    assert (outputs["generates"].vectors, outputs["generates"].token_ids) == (None, [EOS + 5])
    assert bench.scheduler.stats().num_running == 1


def test_the_token_of_a_pooled_row_ends_nothing():
    bench = PoolingBench()
    bench.pool("a", 3)
    assert bench.step(token=EOS)[1]["a"].finish_reason is FinishReason.STOP
    assert not bench.scheduler.has_work
    assert bench.num_free == 100


def test_a_prompt_may_fill_the_context():
    bench = PoolingBench(max_model_len=20, max_num_batched_tokens=20, num_blocks=5)
    bench.pool("full", 20)
    assert bench.step()[1]["full"].vectors is not None
    with pytest.raises(InvalidRequest, match="the prompt has 21 tokens; the model's context is 20") as refused:
        bench.pool("long", 21)
    assert refused.value.code == "context_length_exceeded"
    bench.add("a", prompt(19))
    with pytest.raises(InvalidRequest, match="with at least one more"):
        bench.add("b", prompt(20))


@pytest.mark.parametrize(
    ("tasks", "params", "words"),
    [
        (("classify",), {}, "does not have the task 'classify': its tasks are `embed`, `token_embed`"),
        (("embed", "embed"), {}, "must be named, each once"),
        (("embed",), {"first": 8}, "the first pooled token is 8, of a prompt of 8 tokens"),
        (("embed",), {"first": -1}, "the first pooled token is -1"),
        (("embed",), {"second": 0}, "the second text begins at token 0"),
        (("embed",), {"second": 8}, "the second text begins at token 8, of a prompt of 8 tokens"),
    ],
)
def test_what_cannot_be_pooled_is_refused(tasks: tuple[str, ...], params: dict[str, Any], words: str):
    bench = PoolingBench()
    with pytest.raises(InvalidRequest, match=words):
        bench.pool("a", 8, *tasks, **params)
    with pytest.raises(InvalidRequest, match="must be named, each once"):
        bench.scheduler.add(EngineRequest(request_id="none", inputs=RequestInputs([1], PoolingParams(()))))
    assert not bench.scheduler.has_work


def test_a_prompt_that_one_step_cannot_compute_is_refused_only_if_it_must():
    bench = PoolingBench(max_num_batched_tokens=16)
    with pytest.raises(InvalidRequest, match="one step, which must compute all of it, has 16"):
        bench.pool("whole", 17, "embed", "token_embed")
    bench.pool("chunks", 17)
    assert [rows(bench.step()[0]) for _ in range(2)] == [[(0, 16, 0)], [(16, 1, 1)]]


def test_a_model_without_an_output_layer_generates_nothing():
    bench = PoolingBench(ENCODER)
    with pytest.raises(InvalidRequest, match="generates no tokens; its tasks are `embed`") as refused:
        bench.add("a", prompt(3))
    assert (refused.value.param, refused.value.code) == ("model", "unsupported_task")
    plain = Bench()
    with pytest.raises(InvalidRequest, match="does not have the task 'embed': it only generates tokens"):
        plain.scheduler.add(EngineRequest(request_id="a", inputs=RequestInputs([1], PoolingParams(("embed",)))))


def test_only_what_is_computed_in_chunks_reads_the_prefix_cache():
    bench = PoolingBench()
    bench.add("first", prompt(12), max_tokens=1)
    bench.step()
    bench.pool("last", 12)
    bench.pool("all", 12, "token_embed")
    plan, outputs = bench.step()
    assert rows(plan) == [(8, 4, 1), (0, 12, 1)]
    assert {name: output.num_cached_tokens for name, output in outputs.items()} == {"last": 8, "all": 0}


def test_a_whole_prompt_is_limited_by_the_step_only():
    """Prompts in chunks have a quarter of the step beside an answer; a whole one has all that is left."""
    bench = PoolingBench(max_num_batched_tokens=32, max_prefill_share=0.25)
    bench.add("answers", prompt(3))
    bench.step()
    bench.pool("chunks", 24, begin=500)
    assert rows(bench.step()[0]) == [(3, 1, 1), (0, 8, 0)]
    bench.pool("whole", 22, "token_embed", begin=800)
    while "whole" not in (outputs := bench.step()[1]):
        assert outputs.keys() <= {"answers", "chunks"}
    assert outputs["whole"].vectors is not None


def test_whole_prompts_that_arrive_together_fill_a_step():
    bench = PoolingBench(ENCODER, max_num_batched_tokens=16)
    for name, count in {"a": 7, "b": 9, "c": 4, "d": 16}.items():
        bench.pool(name, count, begin=ord(name) * 100)
    assert [sorted(bench.step()[1]) for _ in range(3)] == [["a", "b"], ["c"], ["d"]]
    assert not bench.scheduler.has_work


def test_answers_pause_for_a_whole_prompt_that_does_not_fit_beside_them():
    bench = PoolingBench(max_num_batched_tokens=16)
    bench.add("answers", prompt(3))
    bench.step()
    bench.pool("whole", 16, "token_embed", begin=500)
    steps = 0
    while "whole" not in bench.step()[1]:
        steps += 1
    assert steps == MAX_BLOCKED_STEPS + 1
    assert bench.step()[1].keys() == {"answers"}


def test_a_prompt_in_chunks_is_computed_again_after_a_preemption():
    bench = PoolingBench(num_blocks=6, max_num_batched_tokens=8, enable_prefix_caching=False)
    bench.add("answers", prompt(6), max_tokens=14)
    bench.step()
    bench.pool("pools", 15, begin=500)
    outputs: dict[str, EngineOutput] = {}
    while bench.scheduler.has_work:
        outputs |= bench.step()[1]
    assert outputs["pools"].vectors is not None
    assert bench.num_free == 6


def test_a_pooled_request_is_aborted_in_any_state():
    bench = PoolingBench(max_num_seqs=1)
    bench.pool("runs", 5)
    bench.pool("waits", 5)
    plan = bench.schedule()
    for name in ("runs", "waits"):
        aborted = bench.scheduler.abort(name)
        assert aborted is not None
        assert (aborted.finish_reason, aborted.vectors) == (FinishReason.ABORT, None)
    assert bench.finish(plan) == {}
    assert not bench.scheduler.has_work
    assert bench.num_free == 100


def test_a_row_that_fails_ends_its_request_and_others_go_on():
    bench = PoolingBench()
    bench.pool("a", 5)
    bench.pool("b", 5, begin=500)
    plan, vector = bench.schedule(), {"embed": Vectors(1, bytes(4))}
    result = StepResult(np.zeros(2, np.int32), vectors={1: vector}, errors={0: "not finite"})
    outputs = {output.request_id: output for output in bench.scheduler.finish_step(plan, result)}
    assert (outputs["a"].finish_reason, outputs["a"].error) == (FinishReason.ERROR, "not finite")
    assert (outputs["b"].finish_reason, outputs["b"].vectors) == (FinishReason.STOP, vector)


def test_priorities_order_pooled_requests():
    bench = PoolingBench(ENCODER, scheduling_policy="priority", max_num_seqs=1)
    for name, priority in (("late", 1), ("soon", 0)):
        inputs = RequestInputs(prompt(4), PoolingParams(("embed",)))
        bench.scheduler.add(EngineRequest(request_id=name, inputs=inputs, priority=priority))
    assert [list(bench.step()[1]) for _ in range(2)] == [["soon"], ["late"]]


def test_sampling_parameters_of_a_pooled_request_are_those_of_a_prompt_without_an_answer():
    assert RequestInputs([1], PoolingParams(("embed",))).sampling == SamplingParams(max_tokens=0)
