"""Removes from the messages of coding agents what changes with every request, so that their prompts share a prefix.

Each rule is declared in RULES. They apply to plain messages, before the chat template gets them, in whatever dialect of
the API the messages came. Only system messages and markers of caches are changed: what users and the model said is not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...engine.api import InvalidRequest

SYSTEM_ROLES = ("system", "developer")
SECOND_SYSTEM = "second-system"
_SECOND_SYSTEM_FIRST, _SECOND_SYSTEM_ERROR = f"{SECOND_SYSTEM}:first", f"{SECOND_SYSTEM}:error"
_BILLING = re.compile(r"^[ \t]*x-anthropic-billing-header:[^\n]*\n?", re.MULTILINE | re.IGNORECASE)
_TOTAL_TOKENS = re.compile(r"\n?<total_tokens>[^<\n]{0,64}</total_tokens>")

Message = Mapping[str, Any]


class Normalised(NamedTuple):
    """removed: rule -> how often it changed something."""

    messages: list[Message]
    tools: list[Message] | None
    removed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _TextRule:
    """Removes all matches from the text of system messages."""

    pattern: re.Pattern[str]
    mark: str  # in every match: a quick check

    def apply(self, text: str) -> tuple[str, int]:
        return self.pattern.subn("", text) if self.mark in text.lower() else (text, 0)


TEXT_RULES: Mapping[str, _TextRule] = {
    "anthropic-billing": _TextRule(_BILLING, "x-anthropic-billing-header:"),
    "total-tokens": _TextRule(_TOTAL_TOKENS, "<total_tokens>"),
}
CACHE_CONTROL = "cache-control"
RULES = (*TEXT_RULES, CACHE_CONTROL)


def rules_of(names: Sequence[str], second_system: str) -> tuple[str, ...]:
    """Names of rules, in a form that can be sent to another process. second_system: `keep`, `first` or `error`."""
    return tuple(names) if second_system == "keep" else (*names, f"{SECOND_SYSTEM}:{second_system}")


def normalised(messages: Sequence[Message], tools: Sequence[Message] | None, rules: Sequence[str]) -> Normalised:
    """The messages and tools with the rules applied; the given ones are not changed.

    Raises InvalidRequest for a second system message, if the rules refuse one.
    """
    removed: Counter[str] = Counter()
    found = list(messages)
    kept_tools = None if tools is None else list(tools)
    for name in rules:
        if (rule := TEXT_RULES.get(name)) is not None:
            found = [_without_matches(message, name, rule, removed) for message in found]
        elif name == CACHE_CONTROL:
            found = [_without_marker(message, removed) for message in found]
            kept_tools = None if kept_tools is None else [_without_marker(tool, removed) for tool in kept_tools]
    if _SECOND_SYSTEM_FIRST in rules or _SECOND_SYSTEM_ERROR in rules:
        found = _one_system_message(found, removed, refuses=_SECOND_SYSTEM_ERROR in rules)
    return Normalised(found, kept_tools, dict(removed))


def _without_matches(message: Message, name: str, rule: _TextRule, removed: Counter[str]) -> Message:
    if message.get("role") not in SYSTEM_ROLES:
        return message
    count = 0

    def clean(text: str) -> str:
        nonlocal count
        text, found = rule.apply(text)
        count += found
        return text

    content = _mapped(message.get("content"), clean)
    if not count:
        return message
    removed[name] += count
    return {**message, "content": content}


def _mapped(content: Any, clean: Callable[[str], str]) -> Any:
    """The content with its texts replaced. Parts that become empty are left out."""
    if isinstance(content, str):
        return clean(content)
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            parts.append(part)
        elif (text := clean(part["text"])) or not part["text"]:
            parts.append({**part, "text": text})
    return parts


def _without_marker(value: Message, removed: Counter[str]) -> Message:
    """Remove `cache_control`, which moves to later messages and tools with every request."""
    content = value.get("content")
    marked = [part for part in content if _is_marked(part)] if isinstance(content, list) else []
    count = len(marked) + _is_marked(value)
    if not count:
        return value
    removed[CACHE_CONTROL] += count
    clean = {name: field for name, field in value.items() if name != "cache_control"}
    if marked:
        clean["content"] = [
            {name: field for name, field in part.items() if name != "cache_control"} if _is_marked(part) else part
            for part in value["content"]
        ]
    return clean


def _is_marked(value: Any) -> bool:
    return isinstance(value, Mapping) and "cache_control" in value


def _one_system_message(messages: list[Message], removed: Counter[str], *, refuses: bool) -> list[Message]:
    """All system messages as one at the beginning: many templates raise an error at any other."""
    places = [index for index, message in enumerate(messages) if message.get("role") in SYSTEM_ROLES]
    if not any(places):  # none, or the first message alone
        return messages
    if refuses:
        index = next(place for place in places if place)
        raise InvalidRequest(
            f"`messages[{index}]` is a system message after the first message, which this deployment refuses "
            "(`server.second_system_message`)",
            param=f"messages[{index}].role",
        )
    removed[SECOND_SYSTEM] += sum(1 for place in places if place)
    merged = {**messages[places[0]], "content": _joined([messages[place].get("content") for place in places])}
    return [merged, *(message for message in messages if message.get("role") not in SYSTEM_ROLES)]


def _joined(contents: Sequence[Any]) -> Any:
    """Text, unless a content has parts."""
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(contents)
    parts: list[Any] = []
    for content in contents:
        parts += content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    return parts
