"""Rendering without generation, and generation of token ids from token ids: what routers in front of replicas call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..fakes import FakeEngine
from .deployment import MODEL, Served, events

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**CHAT, "max_tokens": 3, "seed": 7, "stop": ["x"], "temperature": 0.5}),
        ("/v1/completions", {"model": MODEL, "prompt": "Hello", "max_tokens": 3, "logit_bias": {"5": 2.0}}),
        ("/v1/completions", {"model": MODEL, "prompt": "Hello", "cache_salt": "a", "bad_words": ["no"], "n": 2}),
    ],
)
def test_a_rendered_request_can_be_generated_and_is_then_the_same_request(
    folder: Path, path: str, body: dict[str, Any]
):
    served = Served(folder, sampling_defaults={"top_k": 9})
    rendered = served.post(path + "/render", body).json()
    assert served.engine.requests == []  # nothing is generated
    one = rendered[0] if isinstance(rendered, list) else rendered
    assert one["features"] == {"mm_hashes": {}, "mm_placeholders": {}}
    assert (one["token_offsets"], "token_offsets" in one) == (None, True)  # clients of vLLM's routes read it
    assert served.post("/inference/v1/generate", one).status_code == 200
    again = served.engine.requests[:]
    assert served.post(path, body).status_code == 200
    direct = served.engine.requests[len(again) :]
    assert [(one.inputs, one.priority) for one in again] == [(one.inputs, one.priority) for one in direct]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 3, "instructions": "Be brief."}),
        ("/v1/messages", {**CHAT, "max_tokens": 3, "system": "Be brief.", "temperature": 0.5}),
    ],
)
def test_every_dialect_renders_the_prompt_that_it_generates_from(served: Served, path: str, body: dict[str, Any]):
    rendered = served.post(path + "/render", body).json()
    answer = served.post(path, body).json()
    assert rendered["request_id"].partition("_")[0] == answer["id"].partition("_")[0]
    (request,) = served.engine.requests
    assert rendered["token_ids"] == request.inputs.prompt_token_ids
    assert rendered["sampling_params"]["max_tokens"] == request.inputs.sampling.max_tokens == 3


def test_rendering_is_not_a_request_of_its_session(served: Served):
    """A router renders each request before it sends it: that hid where the prompt diverges."""
    headers = {"x-session-id": "a", "x-prefix-diagnostic": "true"}

    def send(path: str, text: str) -> str | None:
        body = {**CHAT, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
        return served.post(path, body, headers=headers).headers.get("x-prefix-kept")

    assert send("/v1/chat/completions", "Hello") is None
    assert send("/v1/chat/completions/render", "Hullo") is None
    kept, _, before = str(send("/v1/chat/completions", "Hullo")).partition(" of ")
    assert int(kept) < int(before)


def test_a_constraint_is_not_lost_without_a_word(served: Served):
    rendered = served.post("/v1/completions/render", {"prompt": "Hello", "guided_regex": "[ab]"}).json()[0]
    assert rendered["not_carried"] == ["constraint"]
    refused = served.post("/inference/v1/generate", rendered)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "not_carried")


def test_several_prompts_are_rendered_as_a_list(served: Served):
    rendered = served.post("/v1/completions/render", {"prompt": ["Hello", "Hello Hello"]}).json()
    assert [len(one["token_ids"]) for one in rendered] == [
        len(served.post("/tokenize", {"prompt": text}).json()["tokens"]) for text in ("Hello", "Hello Hello")
    ]
    assert rendered[0]["request_id"] != rendered[1]["request_id"]


def test_a_long_chat_is_rendered_in_another_process(served: Served):
    text = "a" * 100_000
    answer = served.post("/v1/chat/completions/render", {"messages": [{"role": "user", "content": text}]})
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    short = {"messages": [{"role": "user", "content": "Hello"}], "metadata": {"x": text}}
    assert (
        served.post("/v1/chat/completions/render", short).json()["token_ids"]
        == (served.post("/v1/chat/completions/render", CHAT).json()["token_ids"])
    )


def test_token_ids_are_answered_by_token_ids(folder: Path):
    served = Served(folder, FakeEngine(script=lambda _: [5, 6, 7]))
    body = {"token_ids": [5, 6], "sampling_params": {"logprobs": 1, "n": 2}, "request_id": "mine"}
    answer = served.post("/inference/v1/generate", body).json()
    assert answer["request_id"] == "generate-tokens-mine"
    assert [choice["token_ids"][:3] for choice in answer["choices"]] == [[5, 6, 7]] * 2
    assert answer["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:5"
    assert answer["usage"]["prompt_tokens"] == 2
    streamed = served.post(
        "/inference/v1/generate", {**body, "stream": True, "stream_options": {"include_usage": True}}
    )
    *chunks, done = events(streamed.text)
    assert done == "[DONE]"
    read = [json.loads(chunk) for chunk in chunks]
    assert read[-1]["usage"] == answer["usage"]
    choices = [choice for chunk in read for choice in chunk["choices"]]
    for index in (0, 1):
        whole = [token for choice in choices if choice["index"] == index for token in choice["token_ids"]]
        assert whole == answer["choices"][index]["token_ids"]
    assert {choice["finish_reason"] for choice in choices} == {None, answer["choices"][0]["finish_reason"]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"sampling_params": {}}, "token_ids"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [-1]}, "token_ids[0]"),
        ({"token_ids": [10**6]}, "token_ids"),
        ({"token_ids": ["a"]}, "token_ids[0]"),
        ({"token_ids": [5], "sampling_params": 3}, "sampling_params"),
        ({"token_ids": [5], "sampling_params": {"stream": True}}, "sampling_params.stream"),
        ({"token_ids": [5], "top_k": 3, "sampling_params": {"top_k": 4}}, "sampling_params.top_k"),
        ({"token_ids": [5], "sampling_params": {"temperature": 3}}, "temperature"),
        ({"token_ids": [5], "features": {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {}}}, "features"),
        ({"token_ids": [5], "kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
    ],
)
def test_a_wrong_field_is_named(served: Served, body: dict[str, Any], param: str):
    answer = served.post("/inference/v1/generate", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
