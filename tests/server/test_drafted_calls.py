"""Calls that are not complete, or not meant, in every dialect: what of them a client sees."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.formats.format import ReasoningMarkers
from stoker.formats.registry import find
from stoker.text.tokenizer import Tokenizer

from ..fakes import FakeEngine
from .deployment import MODEL, Served
from .dialects import speaking
from .test_endings import TOOLS, WAYS, ask

HEAD = '<tool_call>\n{"name": "f", "arguments'
DRAFT = f'<think>\nI could send {HEAD}": {{}}}}\n</tool_call> but no.\n</think>\n\nDone.'


@WAYS
@pytest.mark.parametrize("is_required", [False, True])
def test_a_call_that_is_cut_before_its_name_is_not_in_the_content(
    folder: Path, stream: bool, tokens_per_output: int, is_required: bool
):
    """Before, the content was `<tool_call>` and the beginning of the call."""
    num_tokens = len(Tokenizer.load(folder).encode(HEAD))
    served = speaking(folder, HEAD + '": {}}', tokens_per_output=tokens_per_output)
    choice = {"tool_choice": "required"} if is_required else {}
    chat = ask(served, "chat", stream=stream, max_tokens=num_tokens, **choice)
    assert (chat["content"] or "", chat["finish_reason"]) == ("", "length")
    response = ask(served, "responses", stream=stream, max_output_tokens=num_tokens, **choice)
    assert (response["output"], response["status"]) == ([], "incomplete")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS["messages"]}
    message = served.post("/v1/messages", {**body, "max_tokens": num_tokens}).json()
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")


@WAYS
def test_a_call_that_was_only_thought_of_is_not_carried_out(folder: Path, stream: bool, tokens_per_output: int):
    """Before, it was a call, and the rest of the thinking with its end was content."""
    served = speaking(folder, DRAFT, tokens_per_output=tokens_per_output)
    chat = ask(served, "chat", stream=stream)
    assert (chat["content"], chat["arguments"], chat["finish_reason"]) == ("Done.", [], "stop")
    assert chat["reasoning"].endswith("</tool_call> but no.")
    response = ask(served, "responses", stream=stream)
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert ask(served, "messages", stream=stream)["stop_reason"] == "end_turn"


def test_a_tool_without_parameters_is_called_with_none(folder: Path):
    """Before, the grammar allowed any object, and models made arguments up."""
    served = speaking(folder, "<tool_call>")
    for parameters in (None, {}, {"type": "object", "properties": {}}, {"properties": {}, "required": []}):
        for strict in (False, True):
            function = {"name": "now", "parameters": parameters, "strict": strict}
            answer = served.chat(tools=[{"type": "function", "function": function}], tool_choice="required")
            assert answer.status_code == 200, answer.text
            grammar = served.engine.requests[-1].inputs.sampling.constraint.grammar
            assert '"additionalProperties": false' in grammar, parameters
    function = {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": True}}
    assert served.chat(tools=[{"type": "function", "function": function}], tool_choice="required").status_code == 200
    assert '"additionalProperties": false' not in served.engine.requests[-1].inputs.sampling.constraint.grammar


def test_a_grammar_that_begins_with_the_first_token_governs_the_content(folder: Path):
    """Before, the content was empty, and the object was the reasoning."""
    text = '{"x": 3}'
    thinking = replace(find("hermes"), reasoning=ReasoningMarkers("<think>", "</think>", is_default=True))
    token_ids = Tokenizer.load(folder).encode(text)
    engine = FakeEngine(script=lambda _: token_ids)
    served = Served(folder, engine, answer_format=thinking, structured_outputs={"enable_in_reasoning": True})
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    message = served.chat(response_format=schema).json()["choices"][0]["message"]
    assert json.loads(message["content"]) == {"x": 3}
    assert not message.get("reasoning")
    assert served.chat().json()["choices"][0]["message"]["reasoning"] == text  # without a grammar, the model thinks
