from __future__ import annotations

import json

import pytest
from tests.fake_runner import build_core, continuation

from stoker.engine.api import EngineOutput, EngineRequest, FinishReason, InvalidRequest, SamplingParams
from stoker.engine.engine_core import EngineCore, RunnerUnusable


def core(**settings: object) -> EngineCore:
    return build_core(json.dumps(settings), lambda _: None)


def request(name: str, prompt: list[int], max_tokens: int = 6, **sampling: object) -> EngineRequest:
    params = SamplingParams(max_tokens=max_tokens, **sampling)  # type: ignore[arg-type]
    return EngineRequest(request_id=name, prompt_token_ids=prompt, sampling=params)


def run(engine: EngineCore) -> dict[str, list[EngineOutput]]:
    outputs: dict[str, list[EngineOutput]] = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def test_a_step_that_fails_ends_its_requests_and_no_others():
    engine = core(fail_steps=[1])
    engine.add(request("early", [1, 2]))
    first = engine.step()
    failed = engine.step()
    engine.add(request("late", [1, 2]))  # its prefix was cached, and is computed again: what the cache holds is unknown
    late = run(engine)["late"]
    assert first[0].token_ids == continuation([1, 2], 1)
    assert [(output.request_id, output.finish_reason) for output in failed] == [("early", FinishReason.ERROR)]
    assert failed[0].error == "the engine failed in a step of this request: out of memory"
    assert [token for output in late for token in output.token_ids] == continuation([1, 2], 6)
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


def test_failures_with_successes_between_them_do_not_end_the_engine():
    engine = core(fail_steps=[0, 2, 4, 6])
    for index in range(4):
        engine.add(request(str(index), [index], max_tokens=9))
        engine.step()
        engine.abort(str(index))
        engine.add(request(f"good {index}", [index], max_tokens=1))
        engine.step()
    assert not engine.has_work


def test_three_failures_in_a_row_end_the_engine():
    engine = core(fail_all=True)
    for index in range(2):
        engine.add(request(str(index), [1]))
        assert engine.step()[0].finish_reason is FinishReason.ERROR
    engine.add(request("third", [1]))
    with pytest.raises(RunnerUnusable, match="out of memory"):
        engine.step()


@pytest.mark.parametrize(
    ("prompt", "sampling", "param"),
    [
        ([1000], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([], {}, "prompt"),
        ([1], {"logit_bias": {1000: 1.0}}, "logit_bias"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(prompt: list[int], sampling: dict[str, object], param: str):
    engine = core()
    with pytest.raises(InvalidRequest) as refused:
        engine.add(request("r", prompt, **sampling))
    assert refused.value.param == param
    assert not engine.has_work


def test_step_times_are_counted():
    engine = core()
    engine.add(request("r", [1], max_tokens=3))
    run(engine)
    assert engine.num_steps == engine.stats.num_steps == 3
    assert engine.stats.step_time_s > 0
