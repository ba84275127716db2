"""The order of events in streams: what clients of the three protocols rely on.

Written from the published protocols, for streams of any server: each function takes the events as they were sent, in
order, raises Differs at the first one that a client could not read, and returns the answer that they add up to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from .judging import require

Event = Mapping[str, Any]


def chat_answer(chunks: Iterable[Event]) -> dict[str, Any]:
    """The first choice of a chat stream: text, reasoning, calls and finish_reason.

    A call begins with id, type, name and empty arguments, in the order of their indexes; what follows has no name.
    """
    answer: dict[str, Any] = {"text": "", "reasoning": "", "calls": [], "finish_reason": None}
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != 0:
                continue
            require(answer["finish_reason"] is None, "a delta follows the finish reason")
            delta = choice["delta"]
            answer["text"] += delta.get("content") or ""
            answer["reasoning"] += delta.get("reasoning") or ""
            if delta.get("reasoning_content") is not None and delta.get("reasoning") is not None:
                require(delta["reasoning_content"] == delta["reasoning"], "`reasoning_content` is not `reasoning`")
            for piece in delta.get("tool_calls") or ():
                _add_call(answer["calls"], piece)
            answer["finish_reason"] = choice.get("finish_reason")
    require(answer["finish_reason"] is not None, "the stream has no finish reason")
    for call in answer["calls"]:
        _json(call["arguments"], f"arguments of `{call['name']}`")
    return answer


def _add_call(calls: list[dict[str, Any]], piece: Event) -> None:
    index, function = piece["index"], piece["function"]
    if index == len(calls):
        require(piece.get("id") and piece.get("type") == "function", f"call {index} begins without id and type")
        require(function.get("name"), f"call {index} begins without its name")
        require(function.get("arguments") == "", f"call {index} begins with arguments {function.get('arguments')!r}")
        require(piece["id"] not in {call["id"] for call in calls}, f"two calls have the id {piece['id']}")
        calls.append({"id": piece["id"], "name": function["name"], "arguments": ""})
        return
    require(index == len(calls) - 1, f"a piece of call {index} follows the beginning of call {len(calls) - 1}")
    require(not piece.get("id") and not function.get("name"), f"call {index}: id or name is repeated")
    calls[index]["arguments"] += function["arguments"]


# Per type of item: the field that its deltas add up to, with the prefix of the events' names.
_TEXTS = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.reasoning_text": "text",
    "response.reasoning_summary_text": "text",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
}
_PARTS = {"response.content_part", "response.reasoning_summary_part"}
_ENDS = {"response.completed", "response.incomplete", "response.failed"}


def response_answer(events: Iterable[Event], *, is_checked: bool = True) -> dict[str, Any]:
    """The response of a Responses stream, as its last event has it. is_checked: arguments must be JSON objects."""
    items: list[Any] = []  # as they were done, by output_index
    opened: dict[str, Any] | None = None
    parts: set[str] = set()  # kinds of the open parts: the text of a reasoning item and its summary may alternate
    texts: dict[tuple[str, Any], str] = {}
    names, last = [], None
    for number, event in enumerate(events):
        kind = event["type"]
        names.append(kind)
        require(last is None, f"`{kind}` follows the end of the response")
        require(event["sequence_number"] == number, f"event {number} has sequence_number {event['sequence_number']}")
        base, _, step = kind.rpartition(".")
        if kind in _ENDS:
            last = event["response"]
        elif kind == "response.output_item.added":
            require(opened is None, "an item is added before the one before it is done")
            require(event["output_index"] == len(items), f"item {len(items)} has output_index {event['output_index']}")
            opened = event["item"]
        elif kind == "response.output_item.done":
            require(opened is not None and event["output_index"] == len(items), "an item is done that was not added")
            require(not parts, "an item is done before its part")
            require(event["item"]["id"] == opened["id"], "the id of an item changes")
            items.append(event["item"])
            opened = None
        elif base in _PARTS or base in _TEXTS:
            require(opened is not None, f"`{kind}` outside an item")
            require(event["item_id"] == opened["id"], f"`{kind}` has another item_id than its item")
            require(event["output_index"] == len(items), f"`{kind}` has output_index {event['output_index']}")
            if base in _PARTS:
                require((step == "added") != (base in parts), f"`{kind}`, open are {sorted(parts)}")
                parts ^= {base}
            else:
                place = (event["item_id"], event.get("content_index", event.get("summary_index")), base)
                if step == "delta":
                    require(event["delta"], f"an empty `{kind}`")
                    texts[place] = texts.get(place, "") + event["delta"]
                else:
                    done = event[_TEXTS[base]]
                    require(texts.pop(place, "") == done, f"`{kind}` is not what its deltas add up to: {done!r}")
        else:
            require(number < 2 or kind in {"response.queued"}, f"unknown event `{kind}`")
    require(names[:2] == ["response.created", "response.in_progress"], f"the stream begins with {names[:2]}")
    require(last is not None, f"the stream ends with `{names[-1]}`")
    require(opened is None and not parts, "an item is not done at the end")
    require(not texts, f"no event ends {sorted(base for *_, base in texts)}")
    require(last["output"] == items, f"the response has {last['output']}, done were {items}")
    for item in items:
        if item["type"] == "function_call":
            _json(item["arguments"], f"arguments of `{item['name']}`", is_checked)
    return dict(last)


_DELTAS = {
    "text": {"text_delta": "text", "citations_delta": ""},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}


def prompt_length(usage: Mapping[str, int | None]) -> int:
    """The length of a prompt: `input_tokens` are only those that the cache neither had nor got."""
    return sum(
        usage.get(name) or 0 for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    )


def message_answer(events: Iterable[Event], *, is_checked: bool = True) -> dict[str, Any]:
    """The message of an Anthropic stream: content, stop_reason and usage.

    is_checked: inputs must be JSON objects. Otherwise one that is not, as a small model writes it, is read as {}.
    """
    message: dict[str, Any] | None = None
    blocks: list[dict[str, Any]] = []
    is_open = has_stop = has_ended = False
    last_delta, text = "", ""
    for event in events:
        kind = event["type"]
        require(not has_ended, f"`{kind}` follows message_stop")
        if kind == "ping":
            continue
        if kind == "message_start":
            require(message is None, "message_start comes twice")
            message = dict(event["message"])
            require(message["content"] == [] and message["stop_reason"] is None, "message_start has an answer already")
            require(prompt_length(message["usage"]) > 0, "the usage of message_start has no prompt")
            continue
        require(message is not None, f"`{kind}` before message_start")
        if kind == "content_block_start":
            require(not is_open and not has_stop, "a block starts inside another, or after message_delta")
            require(event["index"] == len(blocks), f"block {len(blocks)} has index {event['index']}")
            blocks.append(dict(event["content_block"]))
            is_open, last_delta, text = True, "", ""
        elif kind == "content_block_delta":
            require(is_open and event["index"] == len(blocks) - 1, "a delta outside its block")
            require(last_delta != "signature_delta", "a delta follows the signature of its block")
            delta, block = event["delta"], blocks[-1]
            last_delta = delta["type"]
            field = _DELTAS[block["type"]].get(last_delta)
            require(field is not None, f"a {last_delta} in a block of type {block['type']}")
            if last_delta == "input_json_delta":
                text += delta["partial_json"]
            else:
                block[field] = block.get(field, "") + delta[field]
        elif kind == "content_block_stop":
            require(is_open and event["index"] == len(blocks) - 1, "a block stops that is not open")
            if blocks[-1]["type"] == "thinking":
                require(last_delta == "signature_delta", "a thinking block stops without a signature_delta")
            if blocks[-1]["type"] == "tool_use":
                require(blocks[-1]["id"] and blocks[-1]["name"], "a tool_use block without id or name")
                blocks[-1]["input"] = _json(text or "{}", f"input of `{blocks[-1]['name']}`", is_checked)
            is_open = False
        elif kind == "message_delta":
            require(not is_open and not has_stop, "message_delta inside a block, or twice")
            has_stop = True
            message.update(event["delta"])
            message["usage"] = {**message["usage"], **event["usage"]}
            require(message["stop_reason"], "message_delta has no stop_reason")
            require(event["usage"]["output_tokens"] > 0, "message_delta has no output_tokens")
        elif kind == "message_stop":
            require(has_stop, "message_stop before message_delta")
            has_ended = True
        else:
            require(False, f"unknown event `{kind}`")
    require(has_ended, "the stream ends without message_stop")
    assert message is not None
    return {**message, "content": blocks}


def _json(text: str, what: str, is_checked: bool = True) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    require(isinstance(value, dict) or not is_checked, f"{what} are not a JSON object: {text!r}")
    return value if isinstance(value, dict) else {}
