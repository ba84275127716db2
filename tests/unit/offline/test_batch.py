from __future__ import annotations

import json

import pytest
from tests.fake_runner import build_core, continuation

from stoker.engine.api import EngineRequest, InvalidRequest, RequestInputs, SamplingParams
from stoker.engine.loop.engine_core import EngineCore
from stoker.engine.loop.engine_loop import EngineLoop
from stoker.offline.batch import OfflineBatch
from stoker.offline.outputs import RequestOutput, SequenceCollector


def core(**settings: object) -> EngineCore:
    return build_core(json.dumps(settings), lambda phase: None)


def run(engine: EngineCore, prompts: list[list[int]], max_tokens: int = 5) -> list[RequestOutput]:
    results, requests = [], {}
    for handle, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=max_tokens)
        request = EngineRequest(request_id=str(handle), inputs=RequestInputs(prompt, sampling))
        results.append(RequestOutput(request.request_id, None, prompt, []))
        requests[handle] = request, SequenceCollector(results[-1], request, None)
    ended: list[None] = []
    loop: EngineLoop[None] = EngineLoop(engine, OfflineBatch(engine, requests, lambda: ended.append(None)))
    try:
        loop.run()
    finally:
        loop.forget(None)
    assert len(ended) == len(prompts)
    return results


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_more_requests_than_the_queue_holds_are_all_served(async_scheduling: bool):
    engine = core(max_num_seqs=2, max_queued_requests=1, async_scheduling=async_scheduling)
    results = run(engine, [[index, 7] for index in range(9)])
    assert [result.outputs[0].token_ids for result in results] == [continuation([index, 7], 5) for index in range(9)]
    assert not engine.has_work


def test_an_empty_batch_ends_immediately():
    assert run(core(), []) == []


def test_a_refused_request_raises_its_reason_and_the_others_are_aborted():
    engine = core()
    with pytest.raises(InvalidRequest, match="the prompt has no tokens") as refused:
        run(engine, [[1], [], [2]])
    assert refused.value.param == "prompt"
    assert not engine.has_work


def test_a_failed_step_raises_and_the_engine_can_be_used_again():
    engine = core(fail_steps=[1])
    with pytest.raises(RuntimeError, match=r"^request 0: the engine failed in a step of this request: out of memory$"):
        run(engine, [[1], [2]])
    assert not engine.has_work
    assert run(engine, [[3]])[0].outputs[0].token_ids == continuation([3], 5)
