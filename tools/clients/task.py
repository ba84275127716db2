"""The task: what every call of an adapter is given. A case changes it."""

from __future__ import annotations

from typing import Any

KEY, MODEL = "sk-clients", "builtin:tiny"
SHORT = {"temperature": 0, "max_tokens": 60}
LONG = {"options": {"max_tokens": 1900}, "extra": {"ignore_eos": True}}
THINKING = {"chat_template_kwargs": {"enable_thinking": True}}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
# What schemas of applications have: a definition, a choice, a list, a value that may be null.
TICKET = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["bug", "idea"]},
        "title": {"type": "string", "maxLength": 20},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
        "owner": {"anyOf": [{"$ref": "#/$defs/owner"}, {"type": "null"}]},
    },
    "required": ["kind", "title", "tags", "owner"],
    "additionalProperties": False,
    "$defs": {
        "owner": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 10}},
            "required": ["name"],
            "additionalProperties": False,
        }
    },
}
_CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Name of the city"}},
    "required": ["city"],
}
_UNITS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["kelvin", "celsius"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}


def _function(name: str, description: str, parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters, **more},
    }


# retries, timeout_s: options of the client. options: OpenAI's fields; extra: others.
TASK: dict[str, Any] = {
    "key": KEY,
    "model": MODEL,
    "question": "What is max_num_seqs?",
    "prompt": "2 + 3 =",
    "system": "Answer in one sentence.",
    "retries": 0,
    "timeout_s": 120.0,
    "options": SHORT,
    "extra": {},
    "schema": PERSON,
    "tool": _function("get_weather", "The weather in a city", _CITY),
    "other_tool": _function("get_time", "The time in a city", _CITY),
    "strict_tool": _function("get_weather", "The weather in a city", _UNITS, strict=True),
    "tool_answer": '{"temperature": 7}',
    "lark": 'start: "*** Begin Patch\\n" line line? line? "*** End Patch"\nline: /[a-z]{1,8}/ "\\n"',
    "exchange": [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"weather": "rain"}'},
    ],
}
