"""Cases of the other APIs: Responses, Anthropic Messages, files and batches."""

from __future__ import annotations

from typing import Any

from .answer_cases import check_calls, valid
from .events import message_answer, response_answer
from .judging import Case, Seen, has_text, is_not_empty, line, require
from .task import PERSON, SHORT, TASK, THINKING


def _response_text(response: Any) -> str:
    items = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in items for part in item["content"])


def _response_calls(response: Any) -> list[dict[str, Any]]:
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    return [{"id": call["call_id"], "name": call["name"], "arguments": call["arguments"]} for call in calls]


def _events(seen: Seen) -> str:
    response = response_answer(seen.returned)
    require(response["status"] == "completed", f"status is {response['status']!r}")
    require(_response_text(response), "the answer is empty")
    require(response["usage"]["output_tokens"] > 0, "no usage")
    return ""


def _call_events(seen: Seen) -> str:
    check_calls(_response_calls(response_answer(seen.returned)))
    return ""


def _reasoning_events(seen: Seen) -> str:
    response = response_answer(seen.returned)
    kinds = [item["type"] for item in response["output"]]
    require(kinds == ["reasoning", "message"], f"items {kinds}")
    return ""


def _pieces(seen: Seen) -> str:
    require(len(seen.returned) > 1, f"{len(seen.returned)} pieces of text")
    require("".join(seen.returned), "the answer is empty")
    return ""


def _response_call(seen: Seen) -> str:
    check_calls(seen.returned["calls"])
    return ""


def _loop(seen: Seen) -> str:
    check_calls(seen.returned["calls"])
    return has_text(seen)


def _incomplete(seen: Seen) -> str:
    wanted = ["incomplete", "max_output_tokens"]
    require(seen.returned == wanted, f"status and reason are {seen.returned}")
    return ""


def _custom(seen: Seen) -> str:
    kinds = [item["type"] for item in seen.returned]
    require("custom_tool_call" in kinds, f"items {kinds}")
    (call,) = (item for item in seen.returned if item["type"] == "custom_tool_call")
    require(call["name"] == "apply_patch" and call["call_id"], f"the call is {call}")
    require(call["input"], "the input is empty")
    return ""


def _patch(seen: Seen) -> str:
    _custom(seen)
    (text,) = (item["input"] for item in seen.returned if item["type"] == "custom_tool_call")
    first, *lines, last = text.split("\n")
    obeys = first == "*** Begin Patch" and last == "*** End Patch" and lines and all(lines)
    require(obeys, f"the input does not obey the grammar: {text!r}")
    return ""


def _stored(seen: Seen) -> str:
    got = seen.returned
    require(got["retrieved"] == got["text"] and got["text"], "the response that was retrieved is another one")
    require(got["input_items"] == 1, f"{got['input_items']} input items")
    require(got["more"] > got["first"], "the first question is not in the prompt of the next one")
    require(got["deleted"] == "openai.NotFoundError", f"after it was deleted: {got['deleted']}")
    return ""


def _status(*wanted: str) -> Any:
    def judge(seen: Seen) -> str:
        require(seen.returned in wanted, f"the status is {seen.returned!r}")
        return ""

    return judge


def _count(seen: Seen) -> str:
    counted, used = seen.returned
    require(counted == used, f"{counted} tokens counted, {used} used")
    return ""


def _message_events(seen: Seen) -> str:
    message = message_answer(seen.returned)
    texts = [block["text"] for block in message["content"] if block["type"] == "text"]
    require(texts and all(texts), "no text")
    require(message["stop_reason"] == "end_turn", f"stop_reason is {message['stop_reason']}")
    return ""


def _message_call_events(seen: Seen) -> str:
    message = message_answer(seen.returned)
    calls = [block for block in message["content"] if block["type"] == "tool_use"]
    check_calls([{"id": call["id"], "name": call["name"], "arguments": call["input"]} for call in calls])
    require(message["stop_reason"] == "tool_use", f"stop_reason is {message['stop_reason']}")
    return ""


def _thinking_events(seen: Seen) -> str:
    message = message_answer(seen.returned)
    kinds = [block["type"] for block in message["content"]]
    require(kinds == ["thinking", "text"], f"blocks {kinds}")
    return ""


def _rows(seen: Seen) -> str:
    got = seen.returned
    require(got["status"] == "completed", f"status is {got['status']!r}: {line(str(got))}")
    require(got["counts"] == [3, 3, 0], f"total, completed, failed: {got['counts']}")
    require(sorted(got["ids"]) == ["a", "b", "c"], f"custom_ids {got['ids']}")
    require(all(got["texts"]), f"texts {got['texts']}")
    return ""


def _failed_rows(seen: Seen) -> str:
    got = seen.returned
    require(got["counts"] == [2, 1, 1], f"total, completed, failed: {got['counts']}")
    require(got["ids"] == ["right"] and got["failed"] == ["wrong"], f"rows {got['ids']}, errors {got['failed']}")
    return ""


def _file(seen: Seen) -> str:
    got = seen.returned
    require(got["content"] == got["sent"], "the content is another one")
    require(got["is_listed"] and got["bytes"] == len(got["sent"]), f"the list or the size is wrong: {got}")
    require(got["deleted"] is True and got["after"] == "openai.NotFoundError", f"after it was deleted: {got}")
    return ""


_CALL_LIMIT = {**SHORT, "max_tokens": 120}
_WEATHER = {"question": "What is the weather in Paris?", "options": _CALL_LIMIT}
_LOOP = {**_WEATHER, "question": "What is the weather in Lisbon?"}
_ANNA = {"question": "Write Anna, 7 years old, as JSON.", "options": {**SHORT, "max_tokens": 200}}
_SUM = {"question": "What is 2 + 3?", "options": {**SHORT, "max_tokens": 200}}
_THINK = {**_SUM, "extra": THINKING}

RESPONSES = (
    Case("responses", "text", is_not_empty),
    Case("async_responses", "text, async", is_not_empty),
    Case("responses_messages", "instructions, and messages as input", is_not_empty),
    Case("responses_stream", "events of text, in order", _events),
    Case("responses_pieces", "text, streamed", _pieces),
    Case("responses_tools", "a function", _response_call, change=_WEATHER),
    Case("responses_stream_call", "a function, streamed", _response_call, change=_WEATHER),
    Case("responses_forced_tool", "a function that must be called", _response_call, change=_WEATHER),
    Case("responses_stream_tools", "events of a call, in order", _call_events, change=_WEATHER),
    Case("responses_loop", "a loop: the function is run, its result is answered", _loop, change=_LOOP),
    Case("responses_custom", "a custom tool", _custom, change=_WEATHER),
    Case("responses_grammar", "a custom tool with a grammar in Lark", _patch, change=_WEATHER),
    Case("responses_stream_grammar", "the same, streamed", _patch, change=_WEATHER),
    Case("responses_unknown_tools", "tools that only OpenAI runs are skipped", _response_call, change=_WEATHER),
    Case("responses_structured", "an object of a class", valid(PERSON), change=_ANNA),
    Case("responses_stream_structured", "the same, streamed", valid(PERSON), change=_ANNA),
    Case("responses_json_object", "an object without a schema", valid({"type": "object"}), change=_ANNA),
    Case("responses_reasoning", "events of reasoning, in order", _reasoning_events, change=_THINK),
    Case("responses_reasoning_back", "reasoning is sent back with the next question", is_not_empty, change=_THINK),
    Case("responses_incomplete", "a limit of tokens", _incomplete),
    Case("responses_stored", "`store`, `previous_response_id`, retrieved and deleted", _stored),
    Case(
        "responses_background", "`background`, cancelled", _status("cancelled"), change={"extra": {"ignore_eos": True}}
    ),
    Case("responses_probe", "empty input and one token, as Codex asks", _status("completed", "incomplete")),
    Case("responses_input_tokens", "tokens of the input", _count),
    Case("responses_error_key", "unknown API key: 401", call="responses", change={"key": "sk-unknown"}, expects="key"),
    Case("responses_error_model", "unknown model: 404", call="responses", change={"model": "nope"}, expects="model"),
)

MESSAGES = (
    Case("messages", "text", is_not_empty),
    Case("messages_stream", "events of text, in order", _message_events),
    Case("messages_tools", "a tool", _response_call, change=_WEATHER),
    Case("messages_stream_tools", "events of a call, in order", _message_call_events, change=_WEATHER),
    Case("messages_thinking", "events of thinking, with its signature", _thinking_events, change=_SUM),
    Case("messages_count", "`count_tokens`", _count, change={"system": TASK["system"]}),
    Case("messages_tools_count", "`count_tokens` with tools", _count, change=_WEATHER),
    Case("messages_alias", "a model name without `/`", is_not_empty, "messages", {"model": "claude-test"}),
    Case("messages_agent", "the client's own loop over tools", _loop, change=_LOOP),
)

BATCHES = (
    Case("files", "a file: sent, listed, read, deleted", _file),
    Case("batch_chat", "a batch of chat requests", _rows, "batch", {"endpoint": "/v1/chat/completions"}),
    Case("batch_responses", "a batch of Responses", _rows, "batch", {"endpoint": "/v1/responses"}),
    Case("batch_error", "a batch with a wrong row", _failed_rows),
    Case("batch_cancel", "a batch is cancelled", _status("cancelling", "cancelled")),
)
