"""Bodies with a byte order mark or compressed, ids for Anthropic's clients, switches of templates, usage in streams."""

from __future__ import annotations

import codecs
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from stoker.server.batch.lines import lines_of, read_line
from stoker.server.endpoint import LONG_BODY_BYTES

from .deployment import Served, events
from .dialects import CALL, THINKS, named_events, speaking

HI = [{"role": "user", "content": "Hi"}]
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
BODY = {"messages": HI, "max_tokens": 5}


def test_a_byte_order_mark_before_a_body_or_a_batch_is_skipped(folder: Path):
    served = speaking(folder, "Ok")
    for filler in ("", " " * LONG_BODY_BYTES):  # a long body is read in another process
        content = codecs.BOM_UTF8 + filler.encode() + json.dumps(BODY).encode()
        assert served.post(CHAT, content).status_code == 200
    line = json.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": BODY}).encode()
    (found,) = lines_of(io.BytesIO(codecs.BOM_UTF8 + line + b"\n"), 10_000)
    assert read_line(*found, 10_000).custom_id == "a"
    assert [*lines_of(io.BytesIO(codecs.BOM_UTF8 + b"\n"), 10_000)] == []


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, "/tokenize", "/v1/completions", "/v1/batches"])
def test_a_compressed_body_is_refused_as_such(folder: Path, tmp_path: Path, path: str):
    served = Served(folder, files_dir=str(tmp_path))
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = served.request("POST", path, content=gzip.compress(json.dumps(BODY).encode()), headers=headers)
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
    error = answer.json()["error"]
    assert error["code"] == "unsupported_media_type"
    assert error["message"] == "the body is sent with Content-Encoding: gzip; it must be sent without compression"
    if path != "/v1/batches":
        plain = served.post(path, {**BODY, "prompt": "x", "input": "x"} if path != "/tokenize" else {"prompt": "x"},
                            headers={"content-encoding": "identity"})  # fmt: skip
        assert plain.status_code in (200, 400)


def test_a_compressed_upload_is_refused_as_such(folder: Path, tmp_path: Path):
    served = Served(folder, files_dir=str(tmp_path))
    answer = served.request("POST", "/v1/files", files={"file": b"x"}, data={"purpose": "batch"},
                            headers={"content-encoding": "br"})  # fmt: skip
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


def test_anthropics_clients_find_the_id_of_a_request_in_its_answer(folder: Path):
    """They read `request-id`; only `x-request-id` was sent, and only with errors."""
    served = speaking(folder, "Hello")
    assert served.post(MESSAGES, BODY).headers["request-id"]
    assert served.post(MESSAGES, {**BODY, "stream": True}).headers["request-id"]
    refused = served.post(MESSAGES, {**BODY, "model": "absent"})
    assert refused.headers["request-id"] == refused.headers["x-request-id"]
    sent = served.post(MESSAGES, BODY, headers={"x-request-id": "mine"})
    assert sent.headers["request-id"] == "mine"
    assert "request-id" not in served.post(CHAT, BODY).headers


@pytest.mark.parametrize("filler", ["", "x" * LONG_BODY_BYTES])
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, "/tokenize"])
def test_a_switch_of_the_template_is_true_or_false(folder: Path, path: str, filler: str):
    """Before, the text "false" switched thinking on, and a name that the template does not read was ignored."""
    body: dict[str, Any] = {"input": "x"} if path == RESPONSES else BODY
    served = speaking(folder, "Ok")
    name = "unknown" if path == "/tokenize" else "user"
    for wrong in ({"enable_thinking": "false"}, {"enable_thinking": 0}, {"thinking": "auto"}, {"other": "True"}):
        answer = served.post(path, {**body, name: filler, "chat_template_kwargs": wrong})
        assert answer.status_code == 400, wrong
        assert answer.json()["error"]["param"] == f"chat_template_kwargs.{next(iter(wrong))}"
    for right in ({"enable_thinking": False}, {"enable_thinking": None}):
        answer = served.post(path, {**body, name: filler, "chat_template_kwargs": right})
        assert answer.status_code == 200
        assert "chat_template_kwargs" not in answer.headers.get("x-stoker-ignored-fields", "")
    answer = served.post(path, {**body, name: filler, "chat_template_kwargs": {"foo": 1, "thinking": False}})
    ignored = "chat_template_kwargs.foo, chat_template_kwargs.thinking"
    assert (answer.status_code, answer.headers["x-stoker-ignored-fields"]) == (200, ignored)


def chunks(served: Served, **fields: Any) -> list[dict[str, Any]]:
    answer = served.chat(stream=True, **fields)
    assert answer.status_code == 200, answer.text
    return [json.loads(data) for data in events(answer.text) if data != "[DONE]"]


def test_the_chunk_with_the_role_counts_no_token(folder: Path):
    options = {"include_usage": True, "continuous_usage_stats": True}
    for fields in ({}, {"n": 2}):
        found = chunks(speaking(folder, "Hello, world!"), stream_options=options, **fields)
        assert found[0]["choices"][0]["delta"]["role"] == "assistant"
        counted = [chunk["usage"]["completion_tokens"] for chunk in found]
        assert (counted[0], counted[1] > 0) == (0, True)
        assert counted == sorted(counted)


def test_usage_in_every_chunk_needs_no_other_option_and_can_be_switched_off(folder: Path):
    served = speaking(folder, "Hello, world!")
    assert all(chunk["usage"] for chunk in chunks(served, stream_options={"continuous_usage_stats": True}))
    off = chunks(served, stream_options={"include_usage": False, "continuous_usage_stats": True})
    assert not any(chunk.get("usage") for chunk in off)


def test_every_event_of_a_response_is_one_that_openais_client_knows(folder: Path):
    tools = [{"type": "function", "name": "weather"}, {"type": "custom", "name": "code"}]
    said = THINKS + "Now:" + CALL + CALL.replace("weather", "code").replace("city", "input")
    served = speaking(folder, said)
    fields = {"input": "x", "tools": tools, "stream": True, "reasoning": {"summary": "auto"}}
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    found = named_events(served.post(RESPONSES, fields).text)
    for event in found:
        assert type(adapter.validate_python(event)).__name__ != "dict", event["type"]
    parts = [event for event in found if event["type"] == "response.content_part.added"]
    assert [event["part"]["type"] for event in parts] == ["reasoning_text", "output_text"]
    (done,) = (event for event in found if event["type"] == "response.function_call_arguments.done")
    assert done["name"] == "weather"


def test_fields_that_would_change_the_prompt_or_the_form_are_refused(folder: Path):
    served = speaking(folder, "Ok")
    error = served.chat(kv_transfer_params={"prompt_token_ids": [5]}).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "kv_transfer_params.prompt_token_ids")
    assert served.chat(kv_transfer_params={"prompt_token_ids": None, "tp_size": 1}).status_code == 200
    generate = "/inference/v1/generate"
    assert served.post(generate, {"token_ids": [5], "output_mode": "tokens"}).status_code == 200


def test_logprobs_0_of_token_ids_has_the_sampled_token(folder: Path):
    choice = (
        speaking(folder, "Ok").post("/inference/v1/generate", {"token_ids": [5], "logprobs": 0}).json()["choices"][0]
    )
    for token in choice["logprobs"]["content"]:
        (top,) = token["top_logprobs"]
        assert (top["token"], top["logprob"]) == (token["token"], token["logprob"])
