"""Content blocks and tools of Anthropic's Messages API, as the messages and functions that chat templates get."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import FieldError
from .history import History, kind_of, string
from .unserved import TEXT_ONLY

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_ROLES = ("user", "assistant", "system")
_KINDS = {str: "a text", dict: "an object", bool: "true or false"}


# What only Anthropic's server makes or reads: the model need not see it.
_SKIPPED = frozenset({
    "server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result",
    "bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result",
    "advisor_tool_result", "tool_addition", "tool_removal", "mcp_tool_listing", "fallback",
})  # fmt: skip


def messages_of(messages: Sequence[Any]) -> History:
    """Raises FieldError with the place of the first wrong block."""
    found = History()
    for index, message in enumerate(messages):
        place = f"[{index}]"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise FieldError("must be user, assistant or system", place=f"{place}.role")
        content = message.get("content")
        if isinstance(content, str):
            found.add({"role": message["role"], "content": content}, place)
        elif not isinstance(content, list):
            raise FieldError("must be a text or a list of blocks", code="invalid_type", place=f"{place}.content")
        elif message["role"] == "assistant":
            _assistant(content, place, found)
        else:
            _user(message["role"], content, place, found)
    if not found.messages:  # there were only skipped blocks
        found.add({"role": "user", "content": ""}, "[0]")
    return found


def system_of(system: Any) -> list[dict[str, Any]]:
    """The system message, if there is one: its blocks remain parts, which are normalised one by one."""
    if isinstance(system, str):
        return [{"role": "system", "content": system}] if system else []
    if not isinstance(system, list):
        raise FieldError("must be a text or a list of blocks", code="invalid_type")
    parts = [{"type": "text", "text": _text(block, f"[{index}]")} for index, block in enumerate(system)]
    return [{"role": "system", "content": parts}] if parts else []


@dataclass(slots=True)
class Tools:
    """functions: of a chat request. places: of each, in the list. skipped: types that only Anthropic has."""

    functions: list[dict[str, Any]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def read_tools(tools: Sequence[Any]) -> Tools:
    """Raises FieldError."""
    found = Tools()
    for index, tool in enumerate(tools):
        place = f"[{index}]"
        if not isinstance(tool, dict):
            raise FieldError("must be an object", code="invalid_type", place=place)
        if tool.get("type", "custom") not in ("custom", None):
            found.skipped.append(str(tool["type"])[:64])
            continue
        if not isinstance(tool.get("name"), str) or not _NAME.fullmatch(tool["name"]):
            raise FieldError("must have 1 to 128 letters, digits, `_`, `-` and `.`", place=f"{place}.name")
        for name, kind in (("description", str), ("input_schema", dict), ("strict", bool)):
            if not isinstance(tool.get(name), kind | None):
                raise FieldError(f"must be {_KINDS[kind]}", code="invalid_type", place=f"{place}.{name}")
        function = {"name": tool["name"], "description": tool.get("description"),
                    "parameters": tool.get("input_schema"), "strict": tool.get("strict") or None}  # fmt: skip
        shown = {name: value for name, value in function.items() if value is not None}
        found.functions.append({"type": "function", "function": shown})
        found.places.append(place)
    return found


def _assistant(blocks: list[Any], place: str, found: History) -> None:
    """One message; with calls that Anthropic's server carried out, several, because their results are between them."""
    message = _Answer()
    num_before = len(found.messages)
    for index, block in enumerate(blocks):
        inner = f"{place}.content[{index}]"
        kind = kind_of(block)
        if kind == "thinking":
            message.reasoning.append(string(block, "thinking", inner))
        elif kind == "redacted_thinking":
            continue  # of another server, which alone can read it
        elif kind in ("tool_use", "mcp_tool_use"):
            if not isinstance(block.get("input"), dict):
                raise FieldError("must be an object", code="invalid_type", place=f"{inner}.input")
            arguments = json.dumps(block["input"], ensure_ascii=False)
            function = {"name": string(block, "name", inner), "arguments": arguments}
            message.calls.append({"id": string(block, "id", inner), "type": "function", "function": function})
        elif kind == "mcp_tool_result":
            found.add(message.written(), place)
            found.add(_result(block, inner, found), inner)
            message = _Answer()
        elif not _is_skipped(block, found):
            message.texts.append(_text(block, inner))
    is_alone = len(found.messages) == num_before
    if message.has_content or (is_alone and all(not _is_skipped(block, found) for block in blocks)):
        found.add(message.written(), place)


@dataclass(slots=True)
class _Answer:
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def has_content(self) -> bool:
        return bool(self.texts or self.reasoning or self.calls)

    def written(self) -> dict[str, Any]:
        content = "".join(self.texts) or (None if self.calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self.reasoning:
            message["reasoning"] = "\n".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def _user(role: str, blocks: list[Any], place: str, found: History) -> None:
    """Results of tools are separate messages; the text around them remains in order."""
    parts: list[dict[str, Any]] = []  # of the message that is open
    num_before = len(found.messages)
    for index, block in enumerate(blocks):
        inner = f"{place}.content[{index}]"
        if isinstance(block, dict) and block.get("type") in ("tool_result", "mcp_tool_result"):
            found.add(_result(block, inner, found), inner)
            parts = []
        elif not _is_skipped(block, found):
            text = _text(block, inner)
            if not parts:
                found.add({"role": role, "content": parts}, place)
            parts.append({"type": "text", "text": text})
    if len(found.messages) == num_before:
        found.add({"role": role, "content": ""}, place)


def _is_skipped(block: Any, found: History) -> bool:
    kind = kind_of(block)
    if kind not in _SKIPPED:
        return False
    found.skip(str(kind))
    return True


def _result(block: dict[str, Any], place: str, found: History) -> dict[str, Any]:
    content = block.get("content")
    if isinstance(content, list):
        shown = [(part, f"{place}.content[{index}]") for index, part in enumerate(content)]
        text = "\n".join(_text(part, inner) for part, inner in shown if not _is_skipped(part, found))
    elif content is None or isinstance(content, str):
        text = content or ""
    else:
        raise FieldError("must be a text or a list of blocks", code="invalid_type", place=f"{place}.content")
    call_id = string(block, "tool_use_id", place)
    return {
        "role": "tool",
        "tool_call_id": call_id,
        "content": f"Error: {text}" if block.get("is_error") is True else text,
    }


def _text(block: Any, place: str) -> str:
    """What the model reads of a block. Raises FieldError for what is not text."""
    kind = kind_of(block)
    match kind:
        case "text":
            return string(block, "text", place)
        case "tool_reference":
            return string(block, "tool_name", place)
        case "search_result":
            head = [string(block, name, place) for name in ("title", "source")]
            return "\n".join([*head, _texts(block.get("content"), f"{place}.content")])
        case "compaction":
            return "" if block.get("content") is None else string(block, "content", place)
        case "browser_state":
            shown = {name: value for name, value in block.items() if name not in ("type", "cache_control")}
            return json.dumps(shown, ensure_ascii=False)
        case "document":
            return _document(block, place)
    if kind in _SKIPPED:
        detail = f"blocks of type {kind!r} are not supported in this place"
    elif kind in ("image", "container_upload"):
        detail = f"blocks of type {kind!r} are not supported: {TEXT_ONLY}"
    else:
        detail = f"blocks of type {str(kind)[:40]!r} are not supported"
    raise FieldError(detail, code="unsupported_parameter", place=f"{place}.type")


def _document(block: dict[str, Any], place: str) -> str:
    given = block.get("source")
    source: dict[str, Any] = given if isinstance(given, dict) else {}
    kind = source.get("type")
    if kind == "text":
        text = string(source, "data", f"{place}.source")
    elif kind == "content":
        text = _texts(source.get("content"), f"{place}.source.content")
    else:
        detail = f"documents of type {str(kind)[:40]!r} are not supported: {TEXT_ONLY}"
        raise FieldError(detail, code="unsupported_parameter", place=f"{place}.source.type")
    head = [string(block, name, place) for name in ("title", "context") if block.get(name) is not None]
    return "\n".join([*head, text])


def _texts(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise FieldError("must be a text or a list of blocks", code="invalid_type", place=place)
    return "\n".join(_text(part, f"{place}[{index}]") for index, part in enumerate(content))
