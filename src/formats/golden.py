"""The golden conversation: a question, and an answer with reasoning, text and calls.

A chat template writes it as the model would; what the parser reads of that must be the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

QUESTION = "How is the weather in São Paulo?"
REASONING = "The user asks about weather."
CONTENT = "One moment."
CALLS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("get_weather", {"city": "São Paulo", "days": 3, "hourly": True}),
    ("take_note", {"text": 'a "b"\n<c>', "tags": ["x", "y"]}),
)
_IDS = ("aB3dE5gH7", "bC4eF6hI8")  # some templates want nine letters and digits
TOOLS: tuple[Mapping[str, Any], ...] = (
    {
        "name": "get_weather",
        "description": "The weather of the next days.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The name of a city."},
                "days": {"type": "integer", "description": "How many days."},
                "hourly": {"type": "boolean", "description": "Every hour."},
            },
            "required": ["city"],
        },
    },
    {
        "name": "take_note",
        "description": "Keep a text.",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "What to keep."},
                "tags": {"type": "array", "items": {"type": "string"}, "description": "Words."},
            },
            "required": ["text"],
        },
    },
)


def question() -> list[dict[str, Any]]:
    return [{"role": "user", "content": QUESTION}]


def tools() -> list[dict[str, Any]]:
    return [{"type": "function", "function": dict(tool)} for tool in TOOLS]


def schemas() -> dict[str, Mapping[str, Any]]:
    """The schema of the arguments of each tool."""
    return {tool["name"]: tool["parameters"] for tool in TOOLS}


def answer(num_calls: int, *, with_content: bool, with_reasoning: bool, as_text: bool = False) -> dict[str, Any]:
    """as_text: the arguments are JSON text, as some templates want it."""
    message: dict[str, Any] = {"role": "assistant", "content": CONTENT if with_content else ""}
    if with_reasoning:
        # the names that templates read
        message |= {"reasoning_content": REASONING, "reasoning": REASONING, "thinking": REASONING}
    if num_calls:
        message["tool_calls"] = [
            {
                "id": id,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments) if as_text else dict(arguments)},
            }
            for id, (name, arguments) in zip(_IDS, CALLS[:num_calls], strict=False)
        ]
    return message


def shown(calls: Sequence[tuple[str, Any]]) -> str:
    """Calls for a message."""
    return ", ".join(f"{name}({json.dumps(arguments, ensure_ascii=False)})" for name, arguments in calls) or "no call"
