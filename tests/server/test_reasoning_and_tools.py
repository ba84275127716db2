"""/v1/chat/completions: reasoning and tool calls as fields of the answer, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.formats.registry import find
from stoker.text.tokenizer import Tokenizer

from ..fakes import FakeEngine
from ..tiny_tokenizer import write_tokenizer
from .deployment import MODEL, Served, events

Saying = Callable[..., Served]
THINKS = "<think>\nLet me see.\n</think>\n\nIt is warm."
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture
def speaking(folder: Path, tokenizer: Tokenizer) -> Saying:
    """As `saying`, with a model that is known to write in Hermes' format."""

    def make(text: str, *, tokens_per_output: int = 1, **options: Any) -> Served:
        token_ids = tokenizer.encode(text)
        engine = FakeEngine(script=lambda _: token_ids, tokens_per_output=tokens_per_output)
        return Served(folder, engine, answer_format=find("hermes"), **options)

    return make


def message(served: Served, **fields: Any) -> dict[str, Any]:
    choice: dict[str, Any] = served.chat(**fields).json()["choices"][0]
    return choice["message"]


def deltas(served: Served, **fields: Any) -> list[dict[str, Any]]:
    *data, last = events(served.chat(stream=True, **fields).text)
    assert last == "[DONE]"
    return [json.loads(one)["choices"][0] for one in data]


def collected(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of the deltas: every field concatenated, calls by their index."""
    whole: dict[str, Any] = {"content": "", "reasoning": "", "reasoning_content": "", "tool_calls": []}
    for choice in choices:
        for name, value in choice["delta"].items():
            if name == "tool_calls":
                for piece in value:
                    if "id" in piece:
                        assert piece["index"] == len(whole["tool_calls"])
                        assert piece["function"]["arguments"] == ""
                        whole["tool_calls"].append({**piece, "function": dict(piece["function"])})
                    else:
                        assert piece.keys() == {"index", "function"}
                        assert piece["function"].keys() == {"arguments"}
                        call = whole["tool_calls"][piece["index"]]
                        call["function"]["arguments"] += piece["function"]["arguments"]
            elif name != "role":
                whole[name] += value or ""
    return whole


@pytest.mark.parametrize("tokens_per_output", [1, 3, 100])
def test_reasoning_and_calls_are_fields_and_the_same_in_a_stream(speaking: Saying, tokens_per_output: int):
    served = speaking(THINKS + CALL + "\n" + CALL, tokens_per_output=tokens_per_output)
    found = message(served, tools=[TOOL])
    assert (found["content"], found["reasoning"]) == ("It is warm.", "Let me see.")
    assert found["reasoning_content"] == found["reasoning"]
    call = {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert [each["function"] for each in found["tool_calls"]] == [call] * 2
    first, second = (call["id"] for call in found["tool_calls"])
    assert first != second
    choices = deltas(served, tools=[TOOL], return_token_ids=True, logprobs=True)
    token_ids = [token_id for choice in choices for token_id in choice.get("token_ids") or ()]
    assert token_ids == served.chat(tools=[TOOL], return_token_ids=True).json()["choices"][0]["token_ids"]
    assert sum(len(choice["logprobs"]["content"]) for choice in choices if choice["logprobs"]) == len(token_ids)
    streamed = collected(choices)
    assert (streamed["content"], streamed["reasoning"]) == (found["content"], found["reasoning"])
    assert [call["function"] for call in streamed["tool_calls"]] == [call["function"] for call in found["tool_calls"]]
    assert (
        choices[-1]["finish_reason"] == served.chat(tools=[TOOL]).json()["choices"][0]["finish_reason"] == "tool_calls"
    )


def test_calls_remain_text_for_a_request_without_tools_or_with_tool_choice_none(speaking: Saying):
    served = speaking(CALL)
    for fields in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        found = message(served, **fields)
        assert found["content"] == CALL
        assert "tool_calls" not in found


def test_content_is_null_only_beside_calls(speaking: Saying):
    assert message(speaking(CALL), tools=[TOOL])["content"] is None
    assert message(speaking(""))["content"] == ""


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ("both", {"reasoning": "Let me see.", "reasoning_content": "Let me see.", "content": "It is warm."}),
        ("reasoning", {"reasoning": "Let me see.", "content": "It is warm."}),
        ("reasoning_content", {"reasoning_content": "Let me see.", "content": "It is warm."}),
        ("inline", {"content": THINKS}),
        ("none", {"content": "It is warm."}),
    ],
)
@pytest.mark.effect("server.reasoning_field")
def test_the_option_names_the_fields_of_reasoning(speaking: Saying, field: str, shown: dict[str, str]):
    served = speaking(THINKS, reasoning_field=field)
    found = message(served)
    assert {name: value for name, value in found.items() if name not in ("role", "refusal")} == shown
    whole = collected(deltas(served))
    assert {name: value for name, value in whole.items() if value} == shown


def test_a_request_that_leaves_reasoning_in_the_content_gets_it_as_generated(speaking: Saying):
    served = speaking(THINKS)
    for fields in ({"separate_reasoning": False}, {"reasoning_format": "none"}):
        assert message(served, **fields)["content"] == THINKS
    assert message(served, reasoning_format="deepseek")["reasoning"] == "Let me see."


@pytest.mark.parametrize("tokens_per_output", [1, 4])
def test_hidden_reasoning_has_no_tokens_and_no_logprobs(speaking: Saying, tokenizer: Tokenizer, tokens_per_output: int):
    """Before, a client that asked for no reasoning could read it in the log-probabilities."""
    served = speaking(THINKS, tokens_per_output=tokens_per_output)
    answer = served.chat(include_reasoning=False, logprobs=True, return_token_ids=True).json()
    choice = answer["choices"][0]
    assert choice["message"]["reasoning"] is None
    shown = tokenizer.decode(choice["token_ids"], skip_special_tokens=True)
    assert "see" not in shown
    assert "think" not in shown
    assert "warm" in shown
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
    assert answer["usage"]["completion_tokens"] > len(choice["token_ids"])
    assert 0 < answer["usage"]["completion_tokens_details"]["reasoning_tokens"] < answer["usage"]["completion_tokens"]


def test_reasoning_is_one_chunk_if_it_is_not_streamed(speaking: Saying):
    choices = deltas(speaking(THINKS), stream_reasoning=False)
    assert [choice["delta"]["reasoning"] for choice in choices if "reasoning" in choice["delta"]] == ["Let me see."]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"type": "function", "function": {"name": "other"}}, "`tool_choice` names the function 'other', which is not"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "never", "tools": []}}, 'must be "auto" or "required"'),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "not empty"),
        ("sometimes", "`tool_choice` must be"),
        (7, "tool_choice"),
    ],
)
def test_a_wrong_tool_choice_is_a_400(speaking: Saying, choice: Any, message: str):
    answer = speaking("x").chat(tools=[TOOL], tool_choice=choice)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"].startswith("tool_choice")
    assert message in error["message"]


STRICT = {"type": "function", "function": {**TOOL["function"], "name": "strict", "strict": True}}


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"tool_choice": "required"}, ["weather", "strict"]),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, ["weather"]),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}}, ["weather"]),
        ({"parallel_tool_calls": False}, ["weather", "strict"]),
        ({}, ["strict"]),  # because one tool is strict
        ({"response_format": {"type": "json_object"}}, ["weather", "strict", "%json", "whitespace_pattern"]),
    ],
)
def test_a_choice_of_tools_is_a_grammar(speaking: Saying, fields: dict[str, Any], parts: list[str]):
    served = speaking(CALL)
    answer = served.chat(tools=[TOOL, STRICT], **fields)
    assert answer.status_code == 200, answer.text
    constraint = served.engine.requests[0].inputs.sampling.constraint
    assert constraint is not None
    for name in ("weather", "strict"):
        assert (f'{name}\\"' in constraint.grammar) == (name in parts or fields == {} or "response_format" in fields)
    assert all(part in constraint.grammar for part in parts)
    is_named = isinstance(fields.get("tool_choice"), dict) and fields["tool_choice"]["type"] == "function"
    assert answer.json()["choices"][0]["finish_reason"] == ("stop" if is_named else "tool_calls")


def test_two_tools_of_one_name_are_refused_unless_they_are_the_same(speaking: Saying):
    served = speaking(CALL)
    assert served.chat(tools=[TOOL, TOOL], tool_choice="required").status_code == 200
    other = {"type": "function", "function": {**TOOL["function"], "parameters": {"type": "object"}}}
    error = served.chat(tools=[TOOL, other]).json()["error"]
    assert error["param"] == "tools[1].function.name"


def test_tools_without_any_wish_need_no_grammar(speaking: Saying):
    served = speaking(CALL)
    for fields in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}, {"parallel_tool_calls": True}):
        assert served.chat(tools=[TOOL], **fields).status_code == 200
        assert served.engine.requests[-1].inputs.sampling.constraint is None


def test_what_a_grammar_cannot_enforce_is_a_400(speaking: Saying, served: Served):
    unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    strict = {"type": "function", "function": {"name": "f", "parameters": unique, "strict": True}}
    error = speaking(CALL).chat(tools=[TOOL, strict]).json()["error"]
    assert error["param"].startswith("tools[1].function.parameters")
    error = served.chat(tools=[TOOL], tool_choice="required").json()["error"]  # of a model whose format is not known
    assert (error["param"], error["code"]) == ("tool_choice", "unsupported_parameter")


def test_patterns_of_tools_are_read_as_those_of_schemas(speaking: Saying):
    """ECMA's `.` does not match the line separators; llguidance's does. Look-ahead exists in ECMA only."""

    def tool(pattern: str, *, strict: bool) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"a/b": {"type": "string", "pattern": pattern}}}
        return {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": strict}}

    for strict in (True, False):
        served = speaking(CALL)
        assert served.chat(tools=[tool("^.b$", strict=strict)], tool_choice="required").status_code == 200
        constraint = served.engine.requests[0].inputs.sampling.constraint
        assert constraint is not None
        assert "u2028" in constraint.grammar
    served = speaking(CALL)
    error = served.chat(tools=[tool("^(?=a)b$", strict=True)]).json()["error"]
    assert error["param"] == "tools[0].function.parameters#/properties/a~1b"
    error = served.chat(tools=[tool("[[:alpha:]]", strict=True)]).json()["error"]
    assert error["param"] == "tools[0].function.parameters#/properties/a~1b/pattern"
    for pattern in ("^(?=a)b$", "[[:alpha:]]", "("):  # a wish: what cannot be obeyed is left out
        assert served.chat(tools=[tool(pattern, strict=False)], tool_choice="required").status_code == 200
        assert "pattern" not in served.engine.requests[-1].inputs.sampling.constraint.grammar


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": True},
        {"type": "integer", "format": "int32"},
        {"type": "string", "format": "password"},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"type": "object", "propertyNames": {"maxLength": 3}, "not": {"required": ["a"]}},
    ],
)
def test_of_a_tool_that_is_not_strict_what_cannot_be_obeyed_is_left_out(speaking: Saying, schema: dict[str, Any]):
    """Each of these was a 400 with `tool_choice: required`."""
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    served = speaking(CALL)
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    answer = served.chat(tools=[tool], tool_choice="required")
    assert answer.status_code == 200, answer.text
    assert '"required": ["a"]' in served.engine.requests[-1].inputs.sampling.constraint.grammar


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("parameters", "place"),
    [
        ({"type": "array"}, "/type"),
        ({"properties": {"a": {"type": "strin"}}}, "/properties/a/type"),
        ({"properties": [1]}, "/properties"),
    ],
)
def test_what_is_no_schema_of_an_object_is_a_400(
    speaking: Saying, parameters: dict[str, Any], place: str, strict: bool
):
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": strict}}
    answer = speaking(CALL).chat(tools=[tool], tool_choice="required")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"tools[0].function.parameters#{place}")


def test_reasoning_of_earlier_messages_reaches_templates_under_their_name(folder: Path, tmp_path: Path):
    template = "{% for m in messages %}{{ m.reasoning_content or '' }}|{{ m.content }};{% endfor %}"
    served = Served(write_tokenizer(tmp_path, template=template))
    for name in ("reasoning", "reasoning_content"):
        earlier = [{"role": "assistant", "content": "a", name: "why"}, {"role": "user", "content": "b"}]
        body = {"model": MODEL, "messages": earlier, "max_tokens": 1}
        assert served.post("/v1/chat/completions", body).status_code == 200
    tokenizer = served.service.need_tokenizer()
    prompts = [
        tokenizer.decode(request.inputs.prompt_token_ids, skip_special_tokens=False)
        for request in served.engine.requests
    ]
    assert prompts == ["why|a;|b;"] * 2


@pytest.mark.parametrize(
    ("expression", "rendered"),
    [
        ("{{ c.function.arguments | tojson }}", '{"a": 1}'),
        ("{{ c.function.arguments }}", '{"a":1}'),
        ("{{ '' + c['function']['arguments'] }}", '{"a":1}'),
        ("{{ c.function.arguments if c.function.arguments is string else 'object' }}", "object"),
        ("{% for k, v in c.function.arguments.items() %}{{ k }}{% endfor %}", "a"),
        ("{% set x = c.function.arguments %}{{ x | tojson }}", '{"a": 1}'),
    ],
)
def test_arguments_are_text_or_an_object_as_the_template_reads_them(tmp_path: Path, expression: str, rendered: str):
    template = "{% for m in messages %}{% for c in m.tool_calls or [] %}" + expression + "{% endfor %}{% endfor %}"
    served = Served(write_tokenizer(tmp_path, template=template))
    for arguments in ('{"a":1}', {"a": 1}):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        body = {"model": MODEL, "messages": [{"role": "assistant", "tool_calls": [call]}], "max_tokens": 1}
        answer = served.post("/v1/chat/completions", body)
        assert answer.status_code == 200, answer.text
    tokenizer = served.service.need_tokenizer()
    prompts = [tokenizer.decode(request.inputs.prompt_token_ids) for request in served.engine.requests]
    assert [prompt.replace(": ", ":") for prompt in prompts] == [rendered.replace(": ", ":")] * 2


def test_a_call_that_the_model_wrote_wrongly_can_be_sent_back(tmp_path: Path):
    """Before, arguments that are not JSON were a 400 in every later request of the conversation."""
    template = (
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    served = Served(write_tokenizer(tmp_path, template=template))
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 3 + 4'}}
    body = {"model": MODEL, "messages": [{"role": "assistant", "tool_calls": [call]}], "max_tokens": 1}
    assert served.post("/v1/chat/completions", body).status_code == 200


@pytest.mark.effect("server.model_aliases")
def test_an_alias_or_its_pattern_is_served_under_the_name_it_means(folder: Path):
    served = Served(folder, model_aliases={"claude-*": MODEL, "exact": "alias"})
    assert served.chat(model="claude-sonnet-5", max_tokens=1).json()["model"] == MODEL
    assert served.chat(model="exact", max_tokens=1).json()["model"] == "alias"
    assert served.chat(model="gpt", max_tokens=1).status_code == 404
    assert served.get("/v1/models/claude-sonnet-5").json()["id"] == MODEL
    assert served.get("/v1/models/gpt").status_code == 404
