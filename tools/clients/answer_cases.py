"""Cases of what an answer can be besides text: calls of tools, reasoning, and values of a schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import jsonschema

from .judging import Case, Differs, Seen, has_text, line, require
from .task import PERSON, SHORT, TASK, THINKING, TICKET

_TOOLS = {each["function"]["name"]: each["function"] for each in (TASK["tool"], TASK["other_tool"])}
_STRICT = {TASK["strict_tool"]["function"]["name"]: TASK["strict_tool"]["function"]}


def check_calls(found: Any, tools: Mapping[str, Any] = _TOOLS) -> None:
    """found: the calls of an answer, as names, or as objects with `name` and, if the client shows them, `id` and
    `arguments` as text or value. Raises Differs."""
    require(found, "no call")
    ids = [call["id"] for call in found if isinstance(call, dict) and "id" in call]
    require(all(ids) and len(set(ids)) == len(ids), f"ids of calls are missing or repeated: {ids}")
    for call in found:
        name = call if isinstance(call, str) else call["name"]
        require(name in tools, f"a call of `{name}`, which is no tool of the request")
        if isinstance(call, dict) and "arguments" in call:
            given = call["arguments"]
            try:
                value = json.loads(given) if isinstance(given, str) else given
                jsonschema.validate(value, tools[name]["parameters"])
            except (ValueError, jsonschema.ValidationError) as error:
                raise Differs(f"arguments of `{name}` are {line(str(given))}: {line(str(error))}") from None


def _called(*names: str, finish_reason: str = "tool_calls", tools: Mapping[str, Any] = _TOOLS) -> Callable[[Seen], str]:
    """Exactly these calls, in this order."""

    def judge(seen: Seen) -> str:
        found = seen.returned["calls"]
        if not found and "<tool_call>" in (seen.returned.get("text") or ""):
            raise Differs("the request is accepted, and the call is in the text of the answer")
        check_calls(found, tools)
        got = tuple(call if isinstance(call, str) else call["name"] for call in found)
        require(got == names, f"calls {got} instead of {names}")
        reason = seen.returned.get("finish_reason", finish_reason)
        require(reason == finish_reason, f"finish_reason is {reason!r} instead of {finish_reason!r}")
        return ""

    return judge


def _some_call(seen: Seen) -> str:
    require(seen.returned["calls"], "no call")
    return ""


def _no_call(seen: Seen) -> str:
    require(not seen.returned["calls"], f"calls {seen.returned['calls']}")
    require(seen.returned["text"], "the answer is empty")
    return ""


def _loop(seen: Seen) -> str:
    check_calls(seen.returned["calls"])
    require(seen.returned["text"], "no text after the result of the tool")
    require("<tool" not in seen.returned["text"], f"the call is in the text: {line(seen.returned['text'])}")
    return ""


def _each_calls(seen: Seen) -> str:
    require(len(seen.returned) == 2, f"{len(seen.returned)} answers instead of 2")
    for calls in seen.returned:
        check_calls(calls)
    return ""


def _thinks(seen: Seen) -> str:
    reasoning, text = seen.returned["reasoning"], seen.returned["text"]
    require(reasoning, f"no reasoning; the text is {line(str(text))}")
    require(text, "no text after the reasoning")
    for part in (reasoning, text):
        require("think>" not in part, f"a marker of the template is in {line(part)}")
    return ""


def _does_not_think(seen: Seen) -> str:
    require(not seen.returned["reasoning"], f"reasoning: {line(str(seen.returned['reasoning']))}")
    require(seen.returned["text"] and "think>" not in seen.returned["text"], f"text: {seen.returned['text']!r}")
    return ""


def _thinks_and_calls(seen: Seen) -> str:
    require(seen.returned["reasoning"], "no reasoning before the call")
    return _called("get_weather")(seen)


def _counts_reasoning(seen: Seen) -> str:
    reasoning, whole = seen.returned
    require(0 < (reasoning or 0) < whole, f"{reasoning} reasoning tokens of {whole} tokens")
    return ""


def valid(schema: Mapping[str, Any]) -> Callable[[Seen], str]:
    """The returned value, or its `value`, obeys the schema."""

    def judge(seen: Seen) -> str:
        value = seen.returned
        if isinstance(value, dict) and "value" in value:
            value = value["value"]
        try:
            jsonschema.validate(value, schema)
        except jsonschema.ValidationError as error:
            raise Differs(f"not a value of the schema: {line(str(value))}: {line(error.message)}") from None
        return ""

    return judge


def _thinks_and_obeys(seen: Seen) -> str:
    require(seen.returned["reasoning"], "no reasoning before the value")
    return valid(PERSON)(seen)


def _matches(seen: Seen) -> str:
    text, values = seen.returned
    require(text in values, f"{text!r} instead of one of {values}")
    return ""


def _refused_schema(seen: Seen) -> str:
    status, param, message = seen.returned
    require(status == 400, f"status {status} instead of 400")
    require("response_format" in (param or ""), f"`param` is {param!r}, which is not the place of the schema")
    return f"400, `param` is `{param}`: {line(message)}"


_CALL_LIMIT = {**SHORT, "max_tokens": 120}
_WEATHER = {"question": "What is the weather in Paris?", "options": _CALL_LIMIT}
_TIME = {"question": "What time is it in Paris?", "options": _CALL_LIMIT}
_ANNA = {"question": "Write Anna, 7 years old, as JSON.", "options": {**SHORT, "max_tokens": 200}}
_TICKET = {**_ANNA, "schema": TICKET, "question": "JSON: kind bug, title crash"}
_SUM = {"question": "What is 2 + 3?", "options": {**SHORT, "max_tokens": 200}}
_THINK = {**_SUM, "extra": THINKING}
_STRICT_WEATHER = {**_WEATHER, "tool": TASK["strict_tool"]}

TOOLS = (
    Case("tools", "`tools`, the model may call one", _called("get_weather"), change=_WEATHER),
    Case("async_tools", "the same, async", _called("get_weather"), change=_WEATHER),
    Case("stream_tools", "the same, streamed", _called("get_weather"), change=_WEATHER),
    Case("forced_tool", "the model must call one", _called("get_weather"), change=_WEATHER),
    Case("stream_forced_tool", "the same, streamed", _called("get_weather"), change=_WEATHER),
    Case(
        "forced_off_topic",
        "the question has nothing to do with the tool that must be called",
        _called("get_weather"),
        "forced_tool",
        {"options": _CALL_LIMIT},
    ),
    Case(
        "named_tool",
        "the model must call a tool by name; two are offered",
        _called("get_time", finish_reason="stop"),
        change=_WEATHER,
    ),
    Case("allowed_tools", "`allowed_tools`: one of the two that are offered", _called("get_time"), change=_WEATHER),
    Case("no_tools", "`tool_choice: none`", _no_call, change=_WEATHER),
    Case("one_call", "one call at most", _called("get_weather"), change=_WEATHER),
    Case(
        "strict_tool",
        "`strict`: the arguments obey the schema",
        _called("get_weather", tools=_STRICT),
        change=_STRICT_WEATHER,
    ),
    Case(
        "parsed_tool",
        "arguments as an object of a class",
        _called("get_weather", tools=_STRICT),
        change=_STRICT_WEATHER,
    ),
    Case("several_tools", "`n` with tools", _each_calls, change=_WEATHER),
    Case("functions", "`functions`, the older form of `tools`", _some_call, change=_WEATHER),
    Case(
        "tool_loop",
        "a loop: the tool is run, its result is answered",
        _loop,
        change={**_WEATHER, "question": "What is the weather in Lisbon?"},
    ),
    Case(
        "stream_tool_loop",
        "the same, streamed",
        _loop,
        change={**_WEATHER, "question": "What is the weather in Lisbon?"},
    ),
)

REASONING = (
    Case("reasoning", "reasoning is apart from the text", _thinks, change=_THINK),
    Case("stream_reasoning", "the same, streamed", _thinks, change=_THINK),
    Case("effort", "an effort switches reasoning on", _thinks, change=_SUM),
    Case("no_effort", "the effort `none` switches it off", _does_not_think, change=_THINK),
    Case("hidden_reasoning", "`include_reasoning: false`", _does_not_think, change=_THINK),
    Case("reasoning_tokens", "number of reasoning tokens", _counts_reasoning, change=_THINK),
    Case("reasoning_back", "reasoning is sent back with the next question", has_text, change=_THINK),
    Case("reasoning_tools", "a call after reasoning", _thinks_and_calls, change={**_WEATHER, "extra": THINKING}),
)

STRUCTURED = (
    Case("structured", "an object of a class, by a JSON schema", valid(PERSON), change=_ANNA),
    Case("stream_structured", "the same, streamed", valid(PERSON), change=_ANNA),
    Case("structured_tool", "an object of a class, by a tool that must be called", valid(PERSON), change=_ANNA),
    Case(
        "structured_off_topic",
        "the question has nothing to do with the schema",
        valid(TICKET),
        "schema",
        {**_TICKET, "question": TASK["question"]},
    ),
    Case("schema", "a schema with definitions, choices, a list and null", valid(TICKET), change=_TICKET),
    Case("json_object", "an object without a schema", valid({"type": "object"}), change=_ANNA),
    Case("structured_reasoning", "reasoning, then an object", _thinks_and_obeys, change={**_ANNA, "extra": THINKING}),
    Case("regex", "a regular expression", _matches, change=_SUM),
    Case("choice", "one of several texts", _matches, change=_SUM),
    Case("grammar", "a grammar", _matches, change=_SUM),
    Case(
        "several_objects",
        "`n` with a schema",
        valid({"type": "array", "items": PERSON, "minItems": 2, "maxItems": 2}),
        change=_ANNA,
    ),
    Case("objects", "a stream of objects", valid({"type": "array", "items": PERSON}), change=_ANNA),
    Case(
        "wrong_schema",
        "a schema that is wrong is refused",
        _refused_schema,
        change={**_ANNA, "schema": {"type": "objekt"}},
    ),
)
