"""How an answer ends, in every dialect: stop strings in reasoning and calls, calls that are cut off, logprobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .deployment import MODEL, Served, events
from .dialects import named_events, speaking

PARAMETERS = {"type": "object", "properties": {"code": {"type": "string"}}}
TOOLS = {
    "chat": [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}],
    "responses": [{"type": "function", "name": "f", "parameters": PARAMETERS}],
    "messages": [{"name": "f", "input_schema": PARAMETERS}],
}
CALL = '<tool_call>\n{"name": "f", "arguments": {"code": "print(1)", "a": 1}}\n</tool_call>'
THINKS = "<think>\nplan step one\n</think>\n\nFinal answer"


def ask(served: Served, dialect: str, *, stream: bool, **fields: Any) -> dict[str, Any]:
    """The whole answer, also of a stream."""
    body: dict[str, Any] = {"model": MODEL, "stream": stream, "tools": TOOLS[dialect], **fields}
    if dialect == "responses":
        answer = served.post("/v1/responses", {**body, "input": "Hi"})
        assert answer.status_code == 200, answer.text
        return named_events(answer.text)[-1]["response"] if stream else answer.json()
    hello = [{"role": "user", "content": "Hi"}]
    if dialect == "messages":
        thinking = {"thinking": {"type": "adaptive"}, "max_tokens": 400}
        answer = served.post("/v1/messages", {**body, "messages": hello, **thinking})
        assert answer.status_code == 200, answer.text
        if not stream:
            return answer.json()
        found = named_events(answer.text)
        return {**found[0]["message"], **found[-2]["delta"]}
    answer = served.post("/v1/chat/completions", {**body, "messages": hello})
    assert answer.status_code == 200, answer.text
    if not stream:
        choice = answer.json()["choices"][0]
        calls = choice["message"].get("tool_calls") or []
        return {**choice, **choice["message"], "arguments": [call["function"]["arguments"] for call in calls]}
    chunks = [json.loads(data)["choices"][0] for data in events(answer.text) if data != "[DONE]"]
    whole: dict[str, Any] = {"content": "", "reasoning": "", "arguments": []}
    for chunk in chunks:
        delta = chunk["delta"]
        whole["content"] += delta.get("content") or ""
        whole["reasoning"] += delta.get("reasoning") or ""
        for piece in delta.get("tool_calls") or ():
            if "id" in piece:
                whole["arguments"].append("")
            whole["arguments"][-1] += piece["function"]["arguments"]
    return {**chunks[-1], **whole}


WAYS = pytest.mark.parametrize(("stream", "tokens_per_output"), [(False, 1), (True, 1), (True, 100)])


@WAYS
def test_a_stop_string_within_the_arguments_is_not_a_complete_call(folder: Path, stream: bool, tokens_per_output: int):
    """Before, it was reported as a call (`tool_calls`, `completed`) with arguments that are not JSON."""
    served = speaking(folder, CALL, tokens_per_output=tokens_per_output)
    chat = ask(served, "chat", stream=stream, stop=["print"])
    assert (chat["finish_reason"], chat["stop_reason"], chat["arguments"]) == ("stop", "print", ['{"code": "'])
    response = ask(served, "responses", stream=stream, stop=["print"])
    (item,) = response["output"]
    assert (item["status"], item["arguments"], response["status"]) == ("incomplete", '{"code": "', "incomplete")
    assert response["incomplete_details"] == {"reason": None}
    message = ask(served, "messages", stream=stream, stop_sequences=["print"])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "print")


@WAYS
def test_a_stop_string_at_the_end_of_the_arguments_is_not_a_complete_call(
    folder: Path, stream: bool, tokens_per_output: int
):
    """Before, `}` cut the last brace off, and the answer was `tool_calls` with arguments that are not JSON."""
    cut = '{"code": "print(1)", "a": 1'
    served = speaking(folder, CALL, tokens_per_output=tokens_per_output)
    chat = ask(served, "chat", stream=stream, stop=["}"])
    assert (chat["finish_reason"], chat["stop_reason"], chat["arguments"]) == ("stop", "}", [cut])
    response = ask(served, "responses", stream=stream, stop=["}"])
    (item,) = response["output"]
    assert (item["status"], item["arguments"], response["status"]) == ("incomplete", cut, "incomplete")
    message = ask(served, "messages", stream=stream, stop_sequences=["}"])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "}")


@WAYS
def test_an_answer_that_ends_within_a_call_is_not_a_complete_call(folder: Path, stream: bool, tokens_per_output: int):
    served = speaking(folder, CALL[:50], tokens_per_output=tokens_per_output)
    assert ask(served, "chat", stream=stream)["finish_reason"] == "stop"
    response = ask(served, "responses", stream=stream)
    assert (response["output"][0]["status"], response["status"]) == ("incomplete", "incomplete")
    assert ask(served, "messages", stream=stream)["stop_reason"] == "end_turn"


@WAYS
def test_a_stop_string_after_a_call_leaves_it_complete(folder: Path, stream: bool, tokens_per_output: int):
    served = speaking(folder, CALL + "\nNow wait", tokens_per_output=tokens_per_output)
    chat = ask(served, "chat", stream=stream, stop=["wait"])
    assert (chat["finish_reason"], chat["content"]) == ("tool_calls", "Now ")
    response = ask(served, "responses", stream=stream, stop=["wait"])
    assert [item["status"] for item in response["output"]] == ["completed", "completed"]
    assert response["status"] == "completed"


@WAYS
def test_stop_strings_do_not_end_the_thinking(folder: Path, stream: bool, tokens_per_output: int):
    """Before, the answer was empty, because the model had thought of the stop string."""
    served = speaking(folder, THINKS, tokens_per_output=tokens_per_output)
    for stop in (["step"], ["\n\n"], ["think"]):
        chat = ask(served, "chat", stream=stream, stop=stop)
        assert (chat["reasoning"], chat["content"]) == ("plan step one", "Final answer"), stop
        assert (chat["finish_reason"], chat.get("stop_reason")) == ("stop", None)
        response = ask(served, "responses", stream=stream, stop=stop)
        assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    message = ask(served, "messages", stream=stream, stop_sequences=["step"])
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    ended = ask(served, "chat", stream=stream, stop=["answer", "step"])
    assert (ended["content"], ended["stop_reason"]) == ("Final ", "answer")


def test_tokens_are_counted_up_to_the_stop_string(folder: Path):
    served = speaking(folder, THINKS + ", and much more")
    tokenizer = served.service.need_tokenizer()
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "stop": ["answer"],
        "return_token_ids": True,
        "logprobs": True,
    }
    choice = served.post("/v1/chat/completions", body).json()["choices"][0]
    assert tokenizer.decode(choice["token_ids"], skip_special_tokens=False) == THINKS
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("First. " + CALL + " Second.", ["First.", " Second."]),
        (CALL + "Done now", ["Done now"]),
        ("<think>\nLet me see.\n</think>\n\nHello", ["Hello"]),
        ("Grüße 😀!", ["Grüße 😀!"]),
    ],
)
@pytest.mark.parametrize("ends", [False, True])
def test_logprobs_of_a_message_are_those_of_its_text(folder: Path, text: str, messages: list[str], ends: bool):
    """Before, a message had the tokens of the call before it, and the end token if that came with other tokens."""
    for tokens_per_output in (1, 3, 100):
        served = speaking(folder, text + "<|im_end|>" * ends, tokens_per_output=tokens_per_output)
        for stream in (False, True):
            response = ask(served, "responses", stream=stream, include=["message.output_text.logprobs"])
            parts = [item["content"][0] for item in response["output"] if item["type"] == "message"]
            assert [part["text"] for part in parts] == messages
            written = [b"".join(bytes(token["bytes"]) for token in part["logprobs"]).decode() for part in parts]
            for found, expected in zip(written, messages, strict=True):
                assert found.strip() == expected.strip()
