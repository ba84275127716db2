"""Errors of Responses and Messages have the names of their own fields, also of bodies that another process reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.server.endpoint import LONG_BODY_BYTES

from ..fakes import FakeEngine
from .deployment import MODEL, Served
from .dialects import speaking

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
HI = {"role": "user", "content": "Hi"}
VALID: dict[str, dict[str, Any]] = {RESPONSES: {"input": [HI]}, MESSAGES: {"messages": [HI], "max_tokens": 5}}
BROKEN = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}, "required": ["a"]}
PATTERN = "#/properties/a"
STRICT = {"name": "f", "strict": True}
CHAT_NAMES = ("response_format", "max_completion_tokens", ".function", "json_schema", "reasoning_effort")
LONG = "Hello " * 600


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "name": "x", "schema": schema}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (RESPONSES, {"input": LONG}, "input"),
        (RESPONSES, {"max_output_tokens": 64_000}, "max_output_tokens"),
        (RESPONSES, {"text": {"format": form(None)}}, "text.format"),
        (RESPONSES, {"text": {"format": form(BROKEN)}}, f"text.format.schema{PATTERN}"),
        (RESPONSES, {"tool_choice": "required"}, "tool_choice"),
        (RESPONSES, {"reasoning": {"effort": "x"}}, "reasoning.effort"),
        (
            RESPONSES,
            {"tools": [{"type": "web_search"}, {"type": "function", **STRICT, "parameters": BROKEN}]},
            f"tools[1].parameters{PATTERN}",
        ),
        (
            RESPONSES,
            {"tools": [{"type": "namespace", "name": "n", "tools": [
                {"type": "function", **STRICT, "parameters": BROKEN}]}]},
            f"tools[0].tools[0].parameters{PATTERN}",
        ),
        (
            RESPONSES,
            {"tools": [{"type": "custom", "name": "g", "format": {
                "type": "grammar", "syntax": "regex", "definition": "("}}]},
            "tools[0].format.definition",
        ),
        (MESSAGES, {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": BROKEN}}},
         f"output_config.format.schema{PATTERN}"),
        (MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice"),
        (
            MESSAGES,
            {"tools": [{"type": "bash_20250124", "name": "bash"}, {**STRICT, "input_schema": BROKEN}]},
            f"tools[1].input_schema{PATTERN}",
        ),
    ],
)  # fmt: skip
def test_errors_name_the_fields_of_the_dialect(folder: Path, path: str, fields: dict[str, Any], param: str):
    """Before, they named fields of a chat request, to which these are converted."""
    served = speaking(folder, "Ok")
    for filler in ("", "x" * LONG_BODY_BYTES):
        answer = served.post(path, {"model": MODEL, **VALID[path], **fields, "metadata": {"x": filler}})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == param
        assert not [name for name in CHAT_NAMES if name in error["message"]], error["message"]
    streamed = served.post(path, {"model": MODEL, "stream": True, **VALID[path], **fields})
    assert streamed.json()["error"]["param"] == param


@pytest.mark.parametrize("filler", ["", "x" * LONG_BODY_BYTES])
def test_errors_name_the_place_of_a_message_in_the_body(folder: Path, filler: str):
    served = Served(folder, second_system_message="error")
    late = {"role": "system", "content": "late"}
    items = [{"type": "web_search_call"}, HI, {"type": "reasoning", "summary": []}, late]
    error = served.post(RESPONSES, {"input": items, "metadata": {"x": filler}, "instructions": "first"}).json()["error"]
    assert error["param"] == "input[3].role"
    assert error["message"].startswith("`input[3]` is a system message after the first message")
    results = [{"type": "tool_result", "tool_use_id": "a", "content": "x"}, {"type": "text", "text": "y"}]
    messages = [HI, {"role": "user", "content": results}, late]
    body = {"messages": messages, "max_tokens": 5, "system": "first", "metadata": {"x": filler}}
    assert served.post(MESSAGES, body).json()["error"]["param"] == "messages[2].role"


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_logits_processors_are_read_once(folder: Path, path: str):
    """Before, they were a 400 on these routes in both of their forms, because they were read twice."""
    served = Served(folder, model={"logits_processor_pattern": "my\\..*"})
    for processor in ("my.Processor", {"qualname": "my.Processor", "kwargs": {"a": 1}}):
        answer = served.post(path, {**VALID[path], "logits_processors": [processor]})
        assert answer.status_code == 200, answer.text
        (sent,) = served.engine.requests[-1].inputs.sampling.logits_processors
        assert sent.qualname == "my.Processor"
    assert (
        served.post(path, {**VALID[path], "logits_processors": ["other.X"]}).json()["error"]["param"]
        == "logits_processors"
    )


def test_a_message_may_be_of_no_tokens(folder: Path):
    """max_tokens 0 fills the cache of prefixes."""
    served = speaking(folder, "Hello")
    body = {**VALID[MESSAGES], "max_tokens": 0}
    whole = served.post(MESSAGES, body).json()
    assert (whole["content"], whole["stop_reason"]) == ([], "max_tokens")
    assert whole["usage"]["output_tokens"] == 0
    assert served.engine.requests[-1].inputs.sampling.max_tokens == 0
    assert '"stop_reason":"max_tokens"' in served.post(MESSAGES, {**body, "stream": True}).text


def test_a_request_may_have_many_tools(folder: Path):
    """Before, more than 128 were a 400 in the words of a library."""
    served = speaking(folder, "Hello", model={"max_model_len": 100_000})
    served.engine._info = FakeEngine(max_model_len=100_000, num_blocks=10_000)._info
    names = [f"f{number}" for number in range(129)]
    assert served.post(MESSAGES, {**VALID[MESSAGES], "tools": [{"name": name} for name in names]}).status_code == 200
    tools = [{"type": "function", "name": name} for name in names]
    assert served.post(RESPONSES, {**VALID[RESPONSES], "tools": tools}).status_code == 200
    functions = [{"type": "function", "function": {"name": name}} for name in names]
    assert served.chat(tools=functions).status_code == 200
