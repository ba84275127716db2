"""/v1/messages: Anthropic's events, blocks and errors."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message
from jiter import from_json

from ..fakes import FakeEngine
from ..tiny_tokenizer import write_tokenizer
from .deployment import MODEL, Served
from .dialects import CALL, THINKS, named_events, prompts, speaking

WEATHER = {"name": "weather", "input_schema": {"type": "object"}}
HELLO = [{"role": "user", "content": "Hi"}]


def ask(served: Served, **fields: Any) -> Any:
    return served.post("/v1/messages", {"model": MODEL, "messages": HELLO, "max_tokens": 400, **fields})


@pytest.mark.parametrize("tokens_per_output", [1, 5, 100])
def test_every_event_is_in_order_and_the_blocks_are_those_of_the_whole_message(folder: Path, tokens_per_output: int):
    served = speaking(folder, THINKS + "Now:" + CALL, tokens_per_output=tokens_per_output)
    fields = {"tools": [WEATHER], "thinking": {"type": "adaptive"}}
    events = named_events(ask(served, stream=True, **fields).text)
    kinds = [kind for kind, _ in groupby((event["type"], event.get("delta", {}).get("type")) for event in events)]
    start, delta, stop = "content_block_start", "content_block_delta", "content_block_stop"
    assert kinds == [
        ("message_start", None),
        (start, None), (delta, "thinking_delta"), (delta, "signature_delta"), (stop, None),
        (start, None), (delta, "text_delta"), (stop, None),
        (start, None), (delta, "input_json_delta"), (stop, None),
        ("message_delta", None), ("message_stop", None),
    ]  # fmt: skip
    assert [event["index"] for event in events if event["type"] == stop] == [0, 1, 2]
    whole = ask(served, **fields).json()
    Message.model_validate(whole)
    thinking, text, call = whole["content"]
    assert (thinking["thinking"], text["text"]) == ("Let me see.", "Now:")
    assert thinking["signature"]
    assert (call["name"], call["input"]) == ("weather", {"city": "Rome"})
    assert call["id"].startswith("toolu_")
    assert whole["stop_reason"] == events[-2]["delta"]["stop_reason"] == "tool_use"
    for name, field, expected in (
        ("thinking_delta", "thinking", "Let me see."),
        ("text_delta", "text", "Now:"),
        ("input_json_delta", "partial_json", '{"city": "Rome"}'),
    ):
        found = [event["delta"][field] for event in events if event.get("delta", {}).get("type") == name]
        assert "".join(found) == expected
    started = events[0]["message"]
    assert started["usage"]["input_tokens"] == whole["usage"]["input_tokens"] > 0
    assert events[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


@pytest.mark.parametrize(
    ("fields", "reason", "text"),
    [
        ({}, "end_turn", None),
        ({"max_tokens": 2}, "max_tokens", None),
        ({"stop_sequences": ["wor"]}, "stop_sequence", "wor"),
    ],
)
def test_the_end_of_a_message_is_its_stop_reason(folder: Path, fields: dict[str, Any], reason: str, text: str | None):
    whole = ask(speaking(folder, "Hello, world!"), **fields).json()
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, text)


def test_blocks_become_messages_of_the_template(tmp_path: Path):
    template = (
        "{% for m in messages %}[{{ m.role }}|{{ m.reasoning or '' }}|{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}|{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}]"
        "{% endfor %}"
    )
    served = speaking(write_tokenizer(tmp_path, template=template), "Ok")
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "why", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "b"}, {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "c"}]},
            {"type": "tool_result", "tool_use_id": "2", "content": "d", "is_error": True},
            {"type": "text", "text": "e"}]},
    ]  # fmt: skip
    answer = ask(served, messages=messages, system=[{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])
    assert answer.status_code == 200, answer.text
    assert prompts(served) == [
        '[system||one\ntwo][user||a][assistant|why|b|f {"x": 1}][tool||c][tool||Error: d][user||e]'
    ]


@pytest.mark.parametrize(
    "arguments", ["[1]", '"Rome"', '{"a": ' + "[" * 3000, '{"a": ' + "[" * 3000 + "]" * 3000 + "}"]
)
@pytest.mark.quick_cases(2)
def test_arguments_that_no_answer_can_have_are_one_text(folder: Path, arguments: str):
    call = f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>'
    served = speaking(folder, call, model={"max_model_len": 100_000})
    served.engine._info = FakeEngine(max_model_len=100_000, num_blocks=10_000)._info
    answer = ask(served, tools=[WEATHER], max_tokens=50_000)
    assert answer.status_code == 200, answer.text
    (block,) = answer.json()["content"]
    assert block["input"].keys() == {"incomplete_arguments"}


@pytest.mark.parametrize("arguments", ["[1]", '"Rome"', '{"city": "\\ud83d"}', '{"a": 1e999}', "null"])
@pytest.mark.parametrize("tokens_per_output", [1, 100])
def test_the_input_of_a_call_is_the_same_object_in_a_stream(folder: Path, arguments: str, tokens_per_output: int):
    """Before, a stream had a list or a text as input, and halves of surrogate pairs, on which clients raise."""
    call = f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>'
    served = speaking(folder, call, tokens_per_output=tokens_per_output)
    (block,) = ask(served, tools=[WEATHER]).json()["content"]
    deltas = [
        event["delta"] for event in named_events(ask(served, tools=[WEATHER], stream=True).text) if "delta" in event
    ]
    pieces = [delta["partial_json"] for delta in deltas if "partial_json" in delta]
    assert from_json("".join(pieces).encode()) == block["input"]
    assert isinstance(block["input"], dict)


@pytest.mark.parametrize("is_long", [False, True])
def test_a_last_message_of_the_assistant_is_continued(folder: Path, is_long: bool):
    served = speaking(folder, "world!", model={"max_model_len": 100_000})
    served.engine._info = FakeEngine(max_model_len=100_000, num_blocks=10_000)._info
    question = {"role": "user", "content": "word " * (15_000 if is_long else 1)}
    for content in ("Hello, ", [{"type": "text", "text": "Hello, "}]):
        answer = ask(served, messages=[question, {"role": "assistant", "content": content}])
        assert answer.json()["content"] == [{"type": "text", "text": "world!"}], answer.text
        assert prompts(served)[-1].endswith("<|im_start|>assistant\nHello, ")
    call = {"type": "tool_use", "id": "1", "name": "weather", "input": {}}
    for content in ("", [call]):  # there is nothing to continue
        assert ask(served, messages=[question, {"role": "assistant", "content": content}]).status_code == 200
        assert prompts(served)[-1].endswith("<think></think>\n")


@pytest.mark.parametrize(
    ("thinking", "is_off"),
    [(None, True), ({"type": "disabled"}, True), ({"type": "enabled"}, False), ({"type": "adaptive"}, False)],
)
def test_a_model_thinks_only_if_the_client_asks(folder: Path, thinking: dict[str, Any] | None, is_off: bool):
    served = speaking(folder, "Ok")
    assert ask(served, thinking=thinking).status_code == 200
    assert prompts(served)[0].endswith("<think></think>\n") == is_off


@pytest.mark.parametrize(
    ("fields", "status", "kind", "shown"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"model": "other"}, 404, "not_found_error", "other"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error", "messages"),
        ({"mcp_servers": [{}]}, 400, "invalid_request_error", "mcp_servers"),
        ({"tools": [{"name": "a b"}]}, 400, "invalid_request_error", "tools"),
        ({"tools": [{"name": "a" * 5000}]}, 400, "invalid_request_error", "tools"),
        ({"tools": [WEATHER, {**WEATHER, "description": "x"}]}, 400, "invalid_request_error", "tools"),
        ({"tool_choice": {"type": "some"}}, 400, "invalid_request_error", "tool_choice"),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences"),
    ],
)
def test_errors_have_the_form_of_this_api(folder: Path, fields: dict[str, Any], status: int, kind: str, shown: str):
    answer = ask(speaking(folder, "Ok"), **fields)
    assert answer.status_code == status, answer.text
    error = answer.json()
    assert error.keys() == {"type", "error"}
    assert (error["type"], error["error"]["type"]) == ("error", kind)
    assert shown in error["error"]["message"]


def test_a_missing_key_is_an_error_of_this_api_and_an_engine_that_dies_an_event(folder: Path):
    served = speaking(folder, "Ok", api_key=["secret"])
    assert ask(served).json()["error"]["type"] == "authentication_error"
    key = {"x-api-key": "secret", "anthropic-version": "2023-06-01"}
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 4}
    assert served.post("/v1/messages", body, headers=key).status_code == 200
    served = speaking(folder, "Hello, world! " * 5)
    paced: list[int] = []

    async def pace() -> None:
        paced.append(1)
        if len(paced) > 4:
            served.engine.die()

    served.engine._pace = pace
    last = named_events(ask(served, stream=True).text)[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")


def test_count_tokens_is_the_length_of_the_prompt(folder: Path):
    served = speaking(folder, "Ok")
    body = {"model": MODEL, "messages": HELLO, "system": "s", "tools": [WEATHER]}
    counted = served.post("/v1/messages/count_tokens", body).json()
    used = ask(served, **body).json()["usage"]
    assert counted == {"input_tokens": used["input_tokens"]}


@pytest.mark.parametrize(("is_shown", "expected"), [(True, (3, 2)), (False, (0, 0))])
def test_cached_tokens_are_shown_where_clients_may_know_them(folder: Path, is_shown: bool, expected: tuple[int, int]):
    """`cache_creation_input_tokens` was the constant 0."""
    served = speaking(folder, "Ok", enable_prompt_tokens_details=is_shown)
    served.engine.num_cached_tokens, served.engine.num_newly_cached_tokens = 3, 2
    events = named_events(ask(served, stream=True).text)
    prompt = len(served.engine.requests[0].inputs.prompt_token_ids)
    begin, end = (next(each for each in events if each["type"] == name) for name in ("message_start", "message_delta"))
    for usage in (ask(served).json()["usage"], begin["message"]["usage"], end["usage"]):
        read, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
        assert (read, written) == expected
        assert usage["input_tokens"] + read + written == prompt


def test_tools_that_only_other_servers_run_are_skipped_and_named(folder: Path):
    tool = {"type": "web_search_20250305", "name": "web_search"}
    answer = ask(speaking(folder, "Ok"), tools=[tool, WEATHER], context_management={"edits": []})
    assert answer.headers["x-stoker-skipped-tools"] == "web_search_20250305"
    assert answer.status_code == 200


@pytest.mark.slow
def test_a_long_body_has_its_tools_its_choice_and_its_messages(folder: Path):
    served = speaking(folder, CALL, model={"max_model_len": 100_000})
    served.engine._info = FakeEngine(max_model_len=100_000, num_blocks=10_000)._info
    system = [{"type": "text", "text": "word " * 15_000}]
    body = {"model": MODEL, "max_tokens": 400, "system": system, "messages": HELLO, "tools": [WEATHER]}
    answer = served.post("/v1/messages", {**body, "tool_choice": {"type": "any"}})
    assert answer.status_code == 200, answer.text
    assert answer.json()["content"][0]["input"] == {"city": "Rome"}
    constraint = served.engine.requests[0].inputs.sampling.constraint
    assert constraint is not None
    assert "weather" in constraint.grammar
    (prompt,) = prompts(served)
    assert prompt.count("word") == 15_000
    assert "weather" in prompt
    wrong = {**body, "messages": [{"role": "user", "content": [{"type": "image"}]}]}
    assert served.post("/v1/messages", wrong).json()["error"]["param"] == "messages[0].content[0].type"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/render"])
def test_more_tokens_than_the_context_has_are_no_limit(folder: Path, path: str):
    """Claude Code asks for 32000, which its own models allow."""
    served = speaking(folder, "Hello")
    answer = served.post(path, {"model": MODEL, "messages": HELLO, "max_tokens": 32000})
    assert answer.status_code == 200, answer.text
