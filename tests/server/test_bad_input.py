"""Every invalid request gets the right status, code and field name, and does not reach the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.server.protocol.json import MAX_VALUES

from ..fakes import FakeEngine
from ..tiny_tokenizer import write_tokenizer
from .deployment import MODEL, Served

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def error_of(response: httpx.Response, status: int) -> tuple[str, str | None]:
    """(code, param) of an error response, after checking its shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]["code"], body["error"]["param"]


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hello", **fields}]}


FIELDS: list[tuple[str, dict[str, Any], str, str]] = [
    (CHAT, {"model": 7}, "invalid_type", "model"),
    (CHAT, {"messages": []}, "empty_array", "messages"),
    (CHAT, {"messages": "Hello"}, "invalid_type", "messages"),
    (CHAT, {"messages": ["Hello"]}, "invalid_type", "messages[0]"),
    (CHAT, {"messages": [*HELLO, {"role": "", "content": ""}]}, "string_below_min_length", "messages[1].role"),
    (CHAT, {"messages": [{"content": "x"}]}, "missing_required_parameter", "messages[0].role"),
    (CHAT, {"messages": HELLO * 4097}, "array_above_max_length", "messages"),
    (CHAT, message(content=7), "invalid_type", "messages[0].content"),
    (CHAT, message(content=[7]), "invalid_type", "messages[0].content[0]"),
    (CHAT, message(content=[{"type": "text"}]), "invalid_type", "messages[0].content[0].text"),
    (CHAT, message(content=[{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]),
     "unsupported_parameter", "messages[0].content[0].type"),
    (CHAT, message(tool_calls=[{"function": "f"}]), "invalid_value", "messages[0].tool_calls[0].function"),
    (CHAT, message(tool_calls=[7] * 128), "invalid_type", "messages[0].tool_calls[0]"),
    (CHAT, {"max_tokens": 0}, "integer_below_min_value", "max_tokens"),
    (CHAT, {"max_tokens": -2}, "integer_below_min_value", "max_tokens"),
    (CHAT, {"max_tokens": 10**18}, "integer_above_max_value", "max_tokens"),
    (CHAT, {"max_tokens": 1.5}, "invalid_type", "max_tokens"),
    (CHAT, {"max_tokens": "8"}, "invalid_type", "max_tokens"),
    (CHAT, {"max_tokens": True}, "invalid_type", "max_tokens"),
    (CHAT, {"max_completion_tokens": 0}, "integer_below_min_value", "max_completion_tokens"),
    (CHAT, {"max_completion_tokens": -2}, "integer_below_min_value", "max_completion_tokens"),
    (TEXT, {"max_tokens": -2}, "integer_below_min_value", "max_tokens"),
    (CHAT, {"max_completion_tokens": 513}, "context_length_exceeded", "max_completion_tokens"),
    (TEXT, {"max_tokens": 513}, "context_length_exceeded", "max_tokens"),
    (CHAT, {"min_tokens": 9, "max_tokens": 8}, "invalid_value", "min_tokens"),
    (CHAT, {"n": 0}, "integer_below_min_value", "n"),
    (CHAT, {"n": 129}, "integer_above_max_value", "n"),
    (CHAT, {"n": 10**9}, "integer_above_max_value", "n"),
    (TEXT, {"logprobs": 21}, "integer_above_max_value", "logprobs"),
    (TEXT, {"logprobs": 10**6}, "integer_above_max_value", "logprobs"),
    (CHAT, {"logprobs": 5}, "invalid_type", "logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "integer_above_max_value", "top_logprobs"),
    (CHAT, {"top_logprobs": 1}, "unsupported_parameter", "top_logprobs"),
    (TEXT, {"prompt_logprobs": -2}, "integer_below_min_value", "prompt_logprobs"),
    (TEXT, {"prompt_logprobs": -1}, "integer_above_max_value", "prompt_logprobs"),
    (TEXT, {"logprobs": -1}, "integer_above_max_value", "logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": -1}, "integer_above_max_value", "top_logprobs"),
    (TEXT, {"prompt_logprobs": 21}, "integer_above_max_value", "prompt_logprobs"),
    (CHAT, {"allowed_token_ids": [5, 400]}, "invalid_token_id", "allowed_token_ids"),
    (CHAT, {"bad_words": [""]}, "string_below_min_length", "bad_words[0]"),
    (CHAT, {"bad_words": ["x"] * 257}, "array_above_max_length", "bad_words"),
    (CHAT, {"truncate_prompt_tokens": 0}, "invalid_value", "truncate_prompt_tokens"),
    (CHAT, {"truncate_prompt_tokens": 513}, "context_length_exceeded", "truncate_prompt_tokens"),
    (CHAT, {"truncation_side": "left"}, "unsupported_parameter", "truncation_side"),
    (CHAT, {"request_id": "a b"}, "invalid_value", "request_id"),
    (CHAT, {"temperature": -1}, "decimal_below_min_value", "temperature"),
    (CHAT, {"temperature": 1e308}, "decimal_above_max_value", "temperature"),
    (CHAT, {"temperature": "hot"}, "invalid_type", "temperature"),
    (CHAT, {"top_p": 0}, "decimal_below_min_value", "top_p"),
    (CHAT, {"top_p": 1.5}, "decimal_above_max_value", "top_p"),
    (CHAT, {"top_k": -2}, "integer_below_min_value", "top_k"),
    (CHAT, {"min_p": -0.5}, "decimal_below_min_value", "min_p"),
    (CHAT, {"repetition_penalty": 0}, "decimal_below_min_value", "repetition_penalty"),
    (CHAT, {"presence_penalty": 2.5}, "decimal_above_max_value", "presence_penalty"),
    (CHAT, {"seed": 2**63}, "integer_above_max_value", "seed"),
    (CHAT, {"logit_bias": {"400": 1}}, "invalid_token_id", "logit_bias"),
    (CHAT, {"logit_bias": {"-1": 1}}, "invalid_token_id", "logit_bias"),
    (CHAT, {"logit_bias": {"x": 1}}, "invalid_token_id", "logit_bias"),
    (CHAT, {"logit_bias": {"1": 101}}, "invalid_value", "logit_bias"),
    (CHAT, {"logit_bias": {str(index): 1 for index in range(1025)}}, "array_above_max_length", "logit_bias"),
    (CHAT, {"logit_bias": {str(index): "x" for index in range(1025)}}, "array_above_max_length", "logit_bias"),
    (CHAT, {"stop_token_ids": [400]}, "invalid_token_id", "stop_token_ids"),
    (CHAT, {"stop_token_ids": [-1]}, "integer_below_min_value", "stop_token_ids[0]"),
    (CHAT, {"stop": [""]}, "invalid_value", "stop"),
    (CHAT, {"stop": ["x"] * 17}, "array_above_max_length", "stop"),
    (CHAT, {"stop": "x" * 1025}, "string_above_max_length", "stop"),
    (CHAT, {"stop": [7]}, "invalid_type", "stop[0]"),
    (TEXT, {"prompt": [400]}, "invalid_token_id", "prompt"),
    (TEXT, {"prompt": [-1]}, "invalid_token_id", "prompt"),
    (TEXT, {"prompt": [5, "x"]}, "invalid_type", "prompt[0]"),
    (TEXT, {"prompt": [True]}, "invalid_type", "prompt[0]"),
    (TEXT, {"prompt": ["x", [5]]}, "invalid_type", "prompt[1]"),
    (TEXT, {"prompt": []}, "empty_array", "prompt"),
    (TEXT, {"prompt": ""}, "invalid_value", "prompt"),
    (TEXT, {"prompt": [[]]}, "invalid_value", "prompt"),
    (TEXT, {"prompt": {"x": 1}}, "invalid_type", "prompt"),
    (TEXT, {"prompt": ["x"] * 1025}, "array_above_max_length", "prompt"),
    (TEXT, {"prompt": ["x"] * 9, "n": 128}, "array_above_max_length", "prompt"),
    (TEXT, {"prompt": [5] * 512}, "context_length_exceeded", "prompt"),
    (TEXT, {"prompt": "Hello " * 600}, "context_length_exceeded", "prompt"),
    (CHAT, message(content="Hello " * 600), "context_length_exceeded", "messages"),
    (TEXT, {"suffix": "x"}, "unsupported_parameter", "suffix"),
    (TEXT, {"best_of": 2, "stream": True}, "unsupported_parameter", "best_of"),
    (TEXT, {"best_of": 2, "n": 3}, "invalid_value", "best_of"),
    (CHAT, {"best_of": 2}, "unsupported_parameter", "best_of"),
    (CHAT, {"priority": 1}, "unsupported_parameter", "priority"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "invalid_value", "tools[0].function.name"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "a" * 1024}}]}, "invalid_value",
     "tools[0].function.name"),
    (CHAT, {"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}] * 1025}, "array_above_max_length", "tools"),
    (CHAT, {"tool_choice": "required"}, "invalid_value", "tool_choice"),
    (CHAT, {"tool_choice": {"type": "function", "function": {"name": "g"}}}, "invalid_value", "tool_choice"),
    (CHAT, {"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "missing_required_parameter",
     "response_format.json_schema"),
    (CHAT, {"modalities": ["text", "audio"]}, "unsupported_parameter", "modalities"),
    (CHAT, {"modalities": [7] * 9}, "array_above_max_length", "modalities"),
    (TEXT, {"regex": "a", "response_format": {"type": "json_object"}}, "invalid_value", "regex"),
    (TEXT, {"regex": "a", "use_beam_search": True}, "unsupported_parameter", "regex"),
    (CHAT, {"documents": [{"text": "x"}]}, "unsupported_parameter", "documents"),
    (CHAT, {"functions": [{"name": "f"}]}, "unsupported_parameter", "functions"),
    (CHAT, {"audio": {"voice": "alloy"}}, "unsupported_parameter", "audio"),
    (CHAT, {"web_search_options": {}}, "unsupported_parameter", "web_search_options"),
    (CHAT, {"guided_json": "{"}, "invalid_value", "guided_json"),
    (CHAT, {"guided_decoding_backend": "outlines"}, "unsupported_parameter", "guided_decoding_backend"),
    (CHAT, {"structured_outputs": {"choice": []}}, "invalid_type", "structured_outputs.choice"),
    (CHAT, {"structured_outputs": {"choise": ["a"]}}, "unknown_parameter", "structured_outputs.choise"),
    (CHAT, {"structured_outputs": {"json": {}, "regex": "a"}}, "invalid_value", "structured_outputs.regex"),
    (CHAT, {"structured_outputs": {"json": {}, "whitespace_pattern": "a*"}}, "invalid_value",
     "structured_outputs.whitespace_pattern"),
    (CHAT, {"chat_template": "{{ x }}"}, "unsupported_parameter", "chat_template"),
    (CHAT, {"chat_template_kwargs": {"chat_template": "{{ x }}"}}, "unsupported_parameter", "chat_template"),
    (CHAT, {"chat_template_kwargs": {"messages": []}}, "unsupported_parameter", "chat_template_kwargs.messages"),
    (CHAT, {"chat_template_kwargs": {"eos_token": ""}}, "unsupported_parameter", "chat_template_kwargs.eos_token"),
    (CHAT, {"continue_final_message": True}, "invalid_value", "continue_final_message"),
    (CHAT, {"stream": "yes"}, "invalid_type", "stream"),
    (CHAT, {"stream_options": {"include_usage": True}}, "unsupported_parameter", "stream_options"),
    (CHAT, {"stream_options": {"include_usage": 1}}, "invalid_type", "stream_options.include_usage"),
    ("/tokenize", {}, "missing_required_parameter", "prompt"),
    ("/tokenize", {"prompt": "x", "messages": HELLO}, "missing_required_parameter", "prompt"),
    ("/tokenize", {"prompt": "x" * 100_000}, "context_length_exceeded", "prompt"),
    ("/detokenize", {"tokens": [400]}, "invalid_token_id", "tokens"),
    ("/detokenize", {"tokens": ["x"]}, "invalid_type", "tokens[0]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "fields", "code", "param"),
    FIELDS,
    ids=[f"{param}-{code}-{i}" for i, (_, _, code, param) in enumerate(FIELDS)],
)
@pytest.mark.quick_cases(40)
def test_an_invalid_field_is_a_400_with_its_name(
    served: Served, path: str, fields: dict[str, Any], code: str, param: str
):
    valid = {CHAT: {"model": MODEL, "messages": HELLO}, TEXT: {"model": MODEL, "prompt": "Hello"}}.get(path, {})
    assert error_of(served.post(path, {**valid, **fields}), 400) == (code, param)
    assert served.engine.requests == []


def test_an_unknown_model_is_an_error_of_the_field_model(served: Served):
    assert error_of(served.chat(model="gpt-x"), 404) == ("model_not_found", "model")
    assert error_of(served.get("/v1/models/gpt-x"), 404) == ("model_not_found", "model")
    assert error_of(served.post("/tokenize", {"prompt": "x", "model": "gpt-x"}), 404) == ("model_not_found", "model")


@pytest.mark.parametrize(
    ("prompt", "fields", "number"),
    [([5] * 600, {}, "600"), ("日本語" * 300_000, {}, "at least"), ([5], {"max_tokens": 600}, "600")],
)
def test_a_context_error_has_both_numbers_and_the_words_by_which_clients_recognise_it(
    served: Served, prompt: object, fields: dict[str, int], number: str
):
    """LiteLLM searches the error's text, in lower case, for the limit. LangChain searches it for "prompt is too long",
    or for the code, which the text of an error of openai 3 no longer contains."""
    error = served.complete(prompt, **fields).json()["error"]
    assert number in error["message"]
    assert "this model's maximum context length is 512 tokens" in error["message"].lower()
    assert "context_length_exceeded" in str({"error": error})
    assert ("prompt is too long" in error["message"]) == ("max_tokens" not in fields)


def test_a_huge_text_is_refused_before_it_is_encoded(served: Served, monkeypatch: pytest.MonkeyPatch):
    def encode(*arguments: object, **options: object) -> None:
        raise AssertionError("the text was encoded")

    monkeypatch.setattr(served.service.need_tokenizer(), "encode", encode)
    response = served.complete("日本語" * 300_000)
    assert error_of(response, 400) == ("context_length_exceeded", "prompt")
    assert "at least" in response.json()["error"]["message"]


def test_a_request_that_exceeds_the_kv_cache_is_refused(folder: Path):
    served = Served(folder, FakeEngine(num_blocks=4))
    assert error_of(served.complete([5] * 70), 400) == ("context_length_exceeded", "prompt")
    assert error_of(served.complete([5] * 60, max_tokens=65), 400) == ("context_length_exceeded", "max_tokens")


BODIES: list[tuple[bytes, str, str | None]] = [
    (b"", "invalid_json", None),
    (b"  ", "invalid_json", None),
    (b'{"model": "x"', "invalid_json", None),
    (b'[{"model": "x"}]', "invalid_json", None),
    (b'"text"', "invalid_json", None),
    (b"null", "invalid_json", None),
    (b'{"temperature": NaN}', "invalid_json", None),
    (b'{"temperature": Infinity}', "invalid_json", None),
    (b'{"temperature": -Infinity}', "invalid_json", None),
    (b'{"seed": ' + b"9" * 5000 + b"}", "invalid_json", None),
    (b'{"model": "a", "model": "b"}', "invalid_json", None),
    (b'{"x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "json_too_deep", None),
    (b"[" * 50_000, "json_too_deep", None),
    (b'{"x":' * 65 + b"1" + b"}" * 65, "json_too_deep", None),
    (b'{"x": {"a": 1' + b"".join(b',"%d":1' % number for number in range(140_000)) + b"}}", "json_too_large", None),
    (b'{"x": [' + b"[]," * 140_000 + b"[]]}", "json_too_large", None),
    (b'{"x": [' + b"7," * MAX_VALUES + b"7]}", "json_too_large", None),
    (b'{"x": [' + b'"",' * MAX_VALUES + b'""]}', "json_too_large", None),
    (b'{"model": "\xff"}', "invalid_unicode", None),
    ('{"model": "x"}'.encode("utf-16"), "invalid_unicode", None),
    (b"\xef\xbb\xbf{}", "missing_required_parameter", "messages"),
    (b'{"model": "m", "messages": [{"role": "user", "content": "\\ud83d"}]}', "invalid_unicode", "messages"),
    (b'{"\\udc00": 1}', "invalid_unicode", "\ufffd"),
]


@pytest.mark.parametrize(("body", "code", "param"), BODIES, ids=range(len(BODIES)))
def test_a_body_that_is_not_a_json_object_is_a_400(served: Served, body: bytes, code: str, param: str | None):
    assert error_of(served.post(CHAT, body), 400) == (code, param)


def test_brackets_within_text_are_not_counted_as_nesting(served: Served):
    assert served.chat("[" * 100 + '\\"{' * 30, max_tokens=1).status_code == 200


def test_brackets_within_text_are_not_counted_as_objects(served: Served):
    text = '[{: \\" \\\\ ' * 60_000
    assert error_of(served.complete(text), 400) == ("context_length_exceeded", "prompt")


def test_commas_within_text_are_not_counted_as_values(served: Served):
    text = 'a, b", ' * (MAX_VALUES // 2 + 1)
    assert error_of(served.complete(text), 400) == ("context_length_exceeded", "prompt")


def test_as_many_token_ids_as_prompts_times_context_are_parsed(folder: Path):
    served = Served(folder, FakeEngine(max_queued=0), model={"max_model_len": 2048})
    body = b'{"model": "org/tiny", "prompt": [' + b"7," * (MAX_VALUES + 1) + b"7]}"
    assert error_of(served.post(TEXT, body), 400) == ("context_length_exceeded", "prompt")


def test_an_escaped_surrogate_pair_is_a_character(served: Served):
    body = json.dumps({"model": MODEL, "prompt": "😀", "max_tokens": 1}).encode()
    assert b"\\ud83d" in body
    assert served.post(TEXT, body).status_code == 200


@pytest.mark.parametrize("depth", [63, 64])
def test_nesting_of_64_levels_is_accepted(served: Served, depth: int):
    body = (
        b'{"model": "org/tiny", "prompt": [5], "max_tokens": 1, "x": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"
    )
    assert served.post(TEXT, body).status_code == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", None])
def test_a_body_not_declared_as_json_is_a_415(served: Served, content_type: str | None):
    headers = {"content-type": content_type} if content_type else {}
    response = served.request("POST", CHAT, content=b"{}", headers=headers)
    assert error_of(response, 415) == ("unsupported_media_type", None)


def test_json_may_be_declared_with_a_charset(served: Served):
    body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 1}).encode()
    response = served.request("POST", TEXT, content=body, headers={"content-type": "Application/JSON; charset=utf-8"})
    assert response.status_code == 200


def test_unknown_fields_are_ignored_and_counted_with_one_warning_each(served: Served, caplog: pytest.LogCaptureFixture):
    for _ in range(2):
        assert served.chat(frequency=1, stream_options={"x": 1}, max_tokens=1).status_code == 200
    assert served.metric('stoker_unknown_request_fields_total{route="/v1/chat/completions"}') == 4
    named = [record.fields["field"] for record in caplog.records if "unknown request field" in record.message]
    assert sorted(named) == ["frequency", "stream_options.x"]


def test_of_the_name_of_an_unknown_field_only_the_beginning_is_kept(served: Served, caplog: pytest.LogCaptureFixture):
    """256 names of 30 MB were kept until the end of the process."""
    for end in ("a", "b"):
        assert served.chat(**{"f" * 100_000 + end: 1}, max_tokens=1).status_code == 200
    named = [record.fields["field"] for record in caplog.records if "unknown request field" in record.message]
    assert named == ["f" * 100]


@pytest.mark.effect("server.strict_requests")
def test_unknown_fields_are_refused_with_strict_requests(folder: Path):
    served = Served(folder, strict_requests=True)
    assert error_of(served.chat(frequency=1), 400) == ("unknown_parameter", "frequency")
    unread = served.chat(chat_template_kwargs={"colour": 1})
    assert error_of(unread, 400) == ("unknown_parameter", "chat_template_kwargs.colour")
    assert served.chat(user="x", max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1", "not_found"),
        ("/v1/models/", "model_not_found"),
        ("//v1/models", "not_found"),
        ("/v1/chat/completions/", "not_found"),
        ("/docs/", "not_found"),
        ("/metrics/", "not_found"),
    ],
)
def test_an_unknown_path_is_a_404_and_never_a_redirect(served: Served, path: str, code: str):
    response = served.get(f"http://localhost{path}", follow_redirects=False)
    assert error_of(response, 404)[0] == code


def test_an_unknown_path_is_shown_so_that_a_wrong_base_url_is_noticed(served: Served):
    """The message was "there is no such route" for a client whose base URL lacks /v1."""
    error = served.post("/chat/completions", {"messages": HELLO}).json()["error"]
    assert error["message"].startswith("/chat/completions, ")
    assert error["message"].endswith("use POST /v1/chat/completions")
    assert len(served.get(f"/{'x' * 5000}").json()["error"]["message"]) < 300


def test_a_wrong_method_is_a_405_with_the_allowed_ones(served: Served):
    response = served.request("PUT", "/v1/models")
    assert error_of(response, 405) == ("method_not_allowed", None)
    assert response.headers["allow"] == "GET, HEAD"


def test_a_model_without_a_chat_template_refuses_chat_requests(tmp_path: Path):
    served = Served(write_tokenizer(tmp_path, template=None))
    assert error_of(served.chat(), 400) == ("no_chat_template", "messages")


def test_the_message_of_a_template_that_refuses_is_returned(tmp_path: Path):
    template = "{{ raise_exception('system comes first') }}"
    served = Served(write_tokenizer(tmp_path, template=template))
    response = served.chat()
    assert error_of(response, 400) == ("invalid_value", "messages")
    assert "system comes first" in response.json()["error"]["message"]


def test_an_unexpected_exception_is_logged_and_not_shown(served: Served, caplog: pytest.LogCaptureFixture):
    def broken(request: object) -> list[int]:
        raise KeyError("/secret/path 0x7f00")

    served.engine._script = broken
    response = served.chat()
    assert error_of(response, 500) == ("internal_error", None)
    assert "secret" not in response.text
    assert any(record.exc_info for record in caplog.records)


def test_a_number_beyond_the_range_of_floats_is_no_bias(served: Served):
    for bias in ("1e999", "-1e999"):
        body = f'{{"messages": [{{"role": "user", "content": "x"}}], "logit_bias": {{"5": {bias}}}}}'
        assert error_of(served.post(CHAT, body.encode()), 400) == ("invalid_value", "logit_bias")
    body = '{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"5": NaN}}'
    assert error_of(served.post(CHAT, body.encode()), 400) == ("invalid_json", None)
