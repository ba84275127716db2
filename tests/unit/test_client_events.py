"""tools.clients.events: a stream in order is read, and one from which any event is missing is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tools.clients.events import chat_answer, message_answer, prompt_length, response_answer
from tools.clients.judging import Differs

TEXT = {"type": "output_text", "text": "ab", "annotations": []}
MESSAGE = {"id": "m", "type": "message", "content": [TEXT]}
CALL = {"id": "f", "type": "function_call", "call_id": "c", "name": "g", "arguments": '{"a": 1}'}


def response_events() -> list[dict[str, Any]]:
    place = {"item_id": "m", "output_index": 0, "content_index": 0}
    call = {"item_id": "f", "output_index": 1}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {}},
        {"type": "response.in_progress", "response": {}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"id": "m"}},
        {"type": "response.content_part.added", **place},
        {"type": "response.output_text.delta", "delta": "a", **place},
        {"type": "response.output_text.delta", "delta": "b", **place},
        {"type": "response.output_text.done", "text": "ab", **place},
        {"type": "response.content_part.done", **place},
        {"type": "response.output_item.done", "output_index": 0, "item": MESSAGE},
        {"type": "response.output_item.added", "output_index": 1, "item": {"id": "f"}},
        {"type": "response.function_call_arguments.delta", "delta": '{"a": 1}', **call},
        {"type": "response.function_call_arguments.done", "arguments": '{"a": 1}', **call},
        {"type": "response.output_item.done", "output_index": 1, "item": CALL},
        {"type": "response.completed", "response": {"output": [MESSAGE, CALL]}},
    ]
    return events


def numbered(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def message_events() -> list[dict[str, Any]]:
    start = {"role": "assistant", "content": [], "stop_reason": None, "usage": {"input_tokens": 3, "output_tokens": 0}}

    def delta(index: int, **fields: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": fields}

    use = {"type": "tool_use", "id": "t", "name": "g", "input": {}}
    return [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        delta(0, type="thinking_delta", thinking="h"),
        delta(0, type="signature_delta", signature="s"),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": use},
        delta(1, type="input_json_delta", partial_json='{"a":'),
        delta(1, type="input_json_delta", partial_json=" 1}"),
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]


def chat_chunks(*deltas: dict[str, Any]) -> list[dict[str, Any]]:
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    return [{"choices": [choice]} for choice in choices]


def call_delta(index: int, arguments: str, **first: Any) -> dict[str, Any]:
    name = {"name": first.pop("name")} if "name" in first else {}
    return {"tool_calls": [{"index": index, **first, "function": {**name, "arguments": arguments}}]}


FIRST = {"id": "c", "type": "function", "name": "g"}


def test_streams_in_order_are_read():
    assert response_answer(numbered(response_events()))["output"] == [MESSAGE, CALL]
    message = message_answer(message_events())
    assert message["content"][1]["input"] == {"a": 1}
    assert message["usage"] == {"input_tokens": 3, "output_tokens": 9}
    chunks = chat_chunks({"content": "x"}, call_delta(0, "", **FIRST), call_delta(0, '{"a"'), call_delta(0, ": 1}"))
    assert chat_answer(chunks)["calls"] == [{"id": "c", "name": "g", "arguments": '{"a": 1}'}]


def test_a_prompt_that_the_prefix_cache_has_and_gets_whole_is_one():
    start, *others = message_events()
    usage = {"input_tokens": 0, "cache_creation_input_tokens": 16, "cache_read_input_tokens": 32, "output_tokens": 0}
    first = {**start, "message": {**start["message"], "usage": usage}}
    assert prompt_length(message_answer([first, *others])["usage"]) == 48
    usage["cache_creation_input_tokens"] = usage["cache_read_input_tokens"] = 0
    with pytest.raises(Differs, match="no prompt"):
        message_answer([first, *others])


@pytest.mark.parametrize(
    ("read", "events", "may_be_missing"),
    [
        (lambda events: response_answer(numbered(events)), response_events(), ()),
        (message_answer, message_events(), (2,)),
    ],
)
def test_no_event_may_be_missing_or_come_twice(
    read: Callable[[Any], Any], events: list[dict[str, Any]], may_be_missing: tuple[int, ...]
):
    for index in range(len(events)):
        if index not in may_be_missing:
            with pytest.raises(Differs):
                read([*events[:index], *events[index + 1 :]])
            with pytest.raises(Differs):
                read([*events[: index + 1], *events[index:]])


@pytest.mark.parametrize(
    "deltas",
    [
        (call_delta(0, "{}", **FIRST),),
        (call_delta(0, "", **FIRST), call_delta(0, "{}", name="g")),
        (call_delta(0, "", type="function", name="g"), call_delta(0, "{}")),
        (call_delta(1, "", **FIRST), call_delta(1, "{}")),
        (call_delta(0, "", **FIRST), call_delta(0, "{")),
        (call_delta(0, "", **FIRST), call_delta(0, "{}"), call_delta(1, "", **FIRST), call_delta(1, "{}")),
    ],
    ids=["early arguments", "repeated name", "no id", "wrong index", "cut arguments", "repeated id"],
)
def test_calls_that_clients_cannot_read_are_noticed(deltas: tuple[dict[str, Any], ...]):
    with pytest.raises(Differs):
        chat_answer(chat_chunks(*deltas))
