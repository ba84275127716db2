"""Content blocks and tools of Anthropic's Messages API, as the messages and functions that chat templates get."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from .errors import FieldError
from .unserved import TEXT_ONLY

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_ROLES = ("user", "assistant", "system")


def messages_of(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Raises FieldError with the place of the first wrong block."""
    found: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        place = f"[{index}]"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise FieldError("must be user, assistant or system", place=f"{place}.role")
        content = message.get("content")
        if isinstance(content, str):
            found.append({"role": message["role"], "content": content})
        elif not isinstance(content, list):
            raise FieldError("must be a text or a list of blocks", code="invalid_type", place=f"{place}.content")
        elif message["role"] == "assistant":
            found.append(_assistant(content, f"{place}.content"))
        else:
            found += _user(message["role"], content, f"{place}.content")
    return found


def system_of(system: Any) -> list[dict[str, Any]]:
    """The system message, if there is one: its blocks remain parts, which are normalised one by one."""
    if isinstance(system, str):
        return [{"role": "system", "content": system}] if system else []
    if not isinstance(system, list):
        raise FieldError("must be a text or a list of blocks", code="invalid_type")
    parts = [{"type": "text", "text": _text(block, f"[{index}]")} for index, block in enumerate(system)]
    return [{"role": "system", "content": parts}] if parts else []


def read_tools(tools: Sequence[Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Functions of a chat request; and the types of tools that are skipped, because only Anthropic has them."""
    functions: list[dict[str, Any]] = []
    skipped: list[str] = []
    for index, tool in enumerate(tools):
        place = f"[{index}]"
        if not isinstance(tool, dict):
            raise FieldError("must be an object", code="invalid_type", place=place)
        if tool.get("type", "custom") not in ("custom", None):
            skipped.append(str(tool["type"])[:64])
            continue
        if not isinstance(tool.get("name"), str) or not _NAME.fullmatch(tool["name"]):
            raise FieldError("must have 1 to 128 letters, digits, `_`, `-` and `.`", place=f"{place}.name")
        for name, kind in (("description", str), ("input_schema", dict), ("strict", bool)):
            if not isinstance(tool.get(name), kind | None):
                raise FieldError(f"must be {_KINDS[kind]}", code="invalid_type", place=f"{place}.{name}")
        function = {"name": tool["name"], "description": tool.get("description"),
                    "parameters": tool.get("input_schema"), "strict": tool.get("strict") or None}  # fmt: skip
        shown = {name: value for name, value in function.items() if value is not None}
        functions.append({"type": "function", "function": shown})
    return functions, skipped


_KINDS = {str: "a text", dict: "an object", bool: "true or false"}


def _assistant(blocks: list[Any], place: str) -> dict[str, Any]:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        inner = f"{place}[{index}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "thinking":
            reasoning.append(_string(block, "thinking", inner))
        elif kind == "redacted_thinking":
            continue  # of another server, which alone can read it
        elif kind == "tool_use":
            if not isinstance(block.get("input"), dict):
                raise FieldError("must be an object", code="invalid_type", place=f"{inner}.input")
            function = {
                "name": _string(block, "name", inner),
                "arguments": json.dumps(block["input"], ensure_ascii=False),
            }
            calls.append({"id": _string(block, "id", inner), "type": "function", "function": function})
        else:
            texts.append(_text(block, inner))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
    if reasoning:
        message["reasoning"] = "\n".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _user(role: str, blocks: list[Any], place: str) -> list[dict[str, Any]]:
    """Results of tools are messages of their own; the text around them remains in order."""
    found: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        inner = f"{place}[{index}]"
        if isinstance(block, dict) and block.get("type") == "tool_result":
            text = _result(block, inner)
            content = f"Error: {text}" if block.get("is_error") is True else text
            call_id = _string(block, "tool_use_id", inner)
            found.append({"role": "tool", "tool_call_id": call_id, "content": content})
            continue
        part = {"type": "text", "text": _text(block, inner)}
        if found and found[-1]["role"] == role:
            found[-1]["content"].append(part)
        else:
            found.append({"role": role, "content": [part]})
    return found or [{"role": role, "content": ""}]


def _result(block: dict[str, Any], place: str) -> str:
    content = block.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise FieldError("must be a text or a list of blocks", code="invalid_type", place=f"{place}.content")
    return "\n".join(_text(part, f"{place}.content[{index}]") for index, part in enumerate(content))


def _text(block: Any, place: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text":
        return _string(block, "text", place)
    source = block.get("source") if kind == "document" else None
    if isinstance(source, dict) and source.get("type") == "text":
        return _string(source, "data", f"{place}.source")
    detail = f"blocks of type {str(kind)[:40]!r} are not supported: {TEXT_ONLY}"
    raise FieldError(detail, code="unsupported_parameter", place=f"{place}.type")


def _string(block: dict[str, Any], name: str, place: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise FieldError("must be a text", code="invalid_type", place=f"{place}.{name}")
    return value
