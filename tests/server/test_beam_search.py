"""Beam search over HTTP: which requests it makes of the engine, what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stoker.engine.api import EngineOutput, EngineRequest
from stoker.text.tokenizer import Tokenizer

from .. import virtual_time
from ..fakes import FakeEngine, next_token
from .deployment import Served

PROMPT = [10, 11, 12]
SEARCH = {"use_beam_search": True, "max_tokens": 5, "return_token_ids": True}


class StepEngine(FakeEngine):
    """Answers no request before `num_expected` are open: a step that sends its requests one by one never ends."""

    def __init__(self, num_expected: list[int]) -> None:
        self.num_expected = num_expected
        self.num_left = 0
        self._step: asyncio.Event | None = None
        super().__init__()

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineOutput]:
        if self._step is None:
            self._step, self.num_left = asyncio.Event(), self.num_expected.pop(0)
        step = self._step
        self.num_left -= 1
        if not self.num_left:
            self._step = None
            step.set()
        await step.wait()
        async for output in super().generate(request):
            yield output


def likely(prompt: list[int], count: int) -> list[int]:
    """What the fake engine ranks first, `count` times: the best of all answers."""
    token_ids = list(prompt)
    for _ in range(count):
        token_ids.append(next_token(token_ids, 400))
    return token_ids[len(prompt) :]


def test_the_best_answers_are_returned_best_first(served: Served):
    answer = served.complete(PROMPT, n=2, best_of=4, logprobs=0, length_penalty=0.0, **SEARCH).json()
    choices = answer["choices"]
    assert [(choice["index"], choice["finish_reason"]) for choice in choices] == [(0, "length"), (1, "length")]
    assert choices[0]["token_ids"] == likely(PROMPT, 5)
    assert choices[1]["token_ids"] != choices[0]["token_ids"]
    # The fake engine's best token has -0.5, the next one -1.5.
    assert [sum(choice["logprobs"]["token_logprobs"]) for choice in choices] == [-2.5, -3.5]
    assert answer["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 10, "total_tokens": 13, "prompt_tokens_details": None,
    }  # fmt: skip
    assert len(served.engine.requests) == 1 + 4 * 4
    assert not served.engine.open_requests


def test_the_requests_of_a_step_are_open_together_for_all_prompts(folder: Path):
    engine = StepEngine([2, 8, 8, 8, 8])
    answer = Served(folder, engine).complete([PROMPT, [20, 21]], n=2, best_of=4, **SEARCH).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["choices"][0]["token_ids"] == likely(PROMPT, 5)
    assert answer["choices"][2]["token_ids"] == likely([20, 21], 5)
    assert answer["usage"]["prompt_tokens"] == 5
    assert engine.num_expected == []
    ids = [request.request_id for request in engine.requests]
    assert len(set(ids)) == len(ids)


def test_a_chat_has_beam_search_too(served: Served, tokenizer: Tokenizer):
    answer = served.chat(n=2, logprobs=True, top_logprobs=2, **SEARCH).json()
    first, second = answer["choices"]
    assert first["token_ids"] == likely(answer["prompt_token_ids"], 5)
    assert first["message"]["content"] == tokenizer.decode(first["token_ids"])
    assert [len(entry["top_logprobs"]) for entry in second["logprobs"]["content"]] == [2] * 5
    assert [request.inputs.sampling.logprobs for request in served.engine.requests] == [3] * len(served.engine.requests)
    wide = served.chat(best_of=3, **SEARCH).json()
    assert wide["choices"][0]["token_ids"] == first["token_ids"]
    assert len(wide["choices"]) == 1
    assert served.engine.requests[-1].inputs.sampling.logprobs == 4  # as many as beams, and the end token


def test_the_end_token_ends_an_answer_and_is_not_in_its_text(folder: Path, tokenizer: Tokenizer):
    """The engine's end token 2 is the best of the second step."""
    engine = FakeEngine(script=lambda request: [30] if len(request.inputs.prompt_token_ids) == 3 else [2])
    answer = Served(folder, engine).complete(PROMPT, early_stopping=True, **SEARCH).json()
    (choice,) = answer["choices"]
    assert (choice["token_ids"], choice["finish_reason"]) == ([30, 2], "stop")
    assert choice["text"] == tokenizer.decode([30])
    assert len(engine.requests) == 2


def test_echo_and_log_probabilities_of_the_prompt(served: Served, tokenizer: Tokenizer):
    answer = served.complete(PROMPT, echo=True, logprobs=1, prompt_logprobs=1, **SEARCH).json()
    (choice,) = answer["choices"]
    assert choice["text"] == tokenizer.decode([*PROMPT, *likely(PROMPT, 5)])
    assert len(choice["logprobs"]["tokens"]) == 3 + 5
    assert len(choice["prompt_logprobs"]) == 3
    assert [request.inputs.sampling.prompt_logprobs for request in served.engine.requests] == [
        1,
        None,
        None,
        None,
        None,
    ]


def test_recommendations_for_sampling_do_not_apply(folder: Path):
    """Most models recommend a temperature, top_p and top_k. Only a temperature of the request scales."""
    served = Served(folder, sampling_defaults={"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1})
    for given, expected in (({}, 0), ({"temperature": 1}, 0), ({"temperature": 0}, 0), ({"temperature": 0.5}, 0.5)):
        served.engine.requests.clear()
        assert served.chat(**SEARCH, **given).status_code == 200
        sampling = served.engine.requests[0].inputs.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (expected, 1, 0, 0)
        assert sampling.processed_logprobs


@pytest.mark.parametrize(
    "fields",
    [
        {"top_p": 0.5},
        {"top_k": 5},
        {"min_p": 0.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"repetition_penalty": 1.1},
        {"stop": ["."]},
        {"bad_words": ["bad"]},
        {"logits_processors": ["a.b"]},
        {"stream": True},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_field_that_a_search_cannot_follow_is_refused_by_its_name(folder: Path, fields: dict[str, Any]):
    served = Served(folder, model={"logits_processor_pattern": ".*"})
    for send in (served.chat, served.complete):
        response = send(**{**SEARCH, **fields})
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (
            400,
            "unsupported_parameter",
            next(iter(fields)),
        )
    assert not served.engine.requests


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"length_penalty": 0.5}, "unsupported_parameter", "length_penalty"),
        ({"early_stopping": True}, "unsupported_parameter", "early_stopping"),
        ({**SEARCH, "early_stopping": "sometimes"}, "invalid_value", "early_stopping"),
        ({**SEARCH, "length_penalty": 1e9}, "decimal_above_max_value", "length_penalty"),
        ({**SEARCH, "best_of": 2, "n": 3}, "invalid_value", "best_of"),
        ({**SEARCH, "max_tokens": 0}, "unsupported_parameter", "max_tokens"),
        ({**SEARCH, "best_of": 128, "prompt": ["a"] * 9}, "array_above_max_length", "use_beam_search"),
    ],
)
def test_what_is_not_a_search_is_refused(served: Served, fields: dict[str, Any], code: str, param: str):
    response = served.complete(fields.pop("prompt", "Hello"), **fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)


def test_more_answers_than_there_are_is_an_error(folder: Path):
    class OneToken(FakeEngine):
        async def generate(self, request: EngineRequest) -> AsyncIterator[EngineOutput]:
            async for output in super().generate(request):
                for entry in output.logprobs or ():
                    entry.logprobs[2:] = [-math.inf] * len(entry.logprobs[2:])
                yield output

    served = Served(folder, OneToken())
    assert served.complete(PROMPT, best_of=2, **SEARCH).json()["choices"][0]["token_ids"] == likely(PROMPT, 5)
    error = served.complete(PROMPT, n=2, **SEARCH).json()["error"]
    assert (error["param"], error["message"]) == ("n", "n is 2, but the fields of this request allow fewer answers")


def test_a_search_that_has_begun_waits_for_a_place_in_the_queue(folder: Path):
    """The queue has space for three requests; a search of four beams needs it twice per step."""

    async def run(num_places: int) -> tuple[int, list[str], FakeEngine]:
        engine = FakeEngine(max_queued=num_places)
        served = Served(folder, engine)
        async with served.client() as client:
            response = await client.post("/v1/completions", json={"prompt": PROMPT, "best_of": 4, **SEARCH})
        return response.status_code, response.json(), engine

    status, answer, engine = virtual_time.run(run(3))
    assert status == 200
    assert answer["choices"][0]["token_ids"] == likely(PROMPT, 5)
    sent = [request.request_id for request in engine.requests]
    assert len(sent) > len(set(sent)) == 1 + 4 * 4
    status, answer, _ = virtual_time.run(run(0))
    assert (status, answer["error"]["code"]) == (429, "queue_full")


def test_an_engine_that_stops_ends_the_search(folder: Path):
    async def run() -> tuple[int, dict[str, Any], FakeEngine]:
        engine = FakeEngine(pace=lambda: asyncio.sleep(3600))
        served = Served(folder, engine)
        async with served.client() as client:
            asking = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": PROMPT, **SEARCH}))
            while not engine.open_requests:
                await asyncio.sleep(0)
            engine.die()
            response = await asking
        return response.status_code, response.json(), engine

    status, answer, engine = asyncio.run(run())
    assert (status, answer["error"]["code"]) == (503, "engine_restarting")
    assert not engine.open_requests
