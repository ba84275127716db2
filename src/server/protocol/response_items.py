"""Items of the Responses API, as the messages that chat templates get.

Neighbouring items of an answer become one message of the assistant: reasoning, text and calls.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

from .errors import FieldError
from .response_tools import INPUT, flat_name
from .unserved import TEXT_ONLY

_OPAQUE = "stoker1:"  # begins `encrypted_content`: reasoning of this server, which clients send back unread
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


def opaque(reasoning: str) -> str:
    """Reasoning in the form of `encrypted_content`. It is no secret: the client gets the text as well."""
    return _OPAQUE + base64.b64encode(reasoning.encode()).decode()


def with_parts(item: dict[str, Any]) -> dict[str, Any]:
    """An item of an input as the API shows it: also of a message that a client sent in short, all is written out."""
    if item.get("type", "message") != "message":
        return item
    content = item["content"]
    if isinstance(content, str):
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        content = [{"type": kind, "text": content}]
    return {"type": "message", **item, "content": content}


def messages_of(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Raises FieldError with the place of the first wrong item."""
    messages: list[dict[str, Any]] = []
    is_open = False  # the last message is the assistant's, and the next item may belong to it
    for index, item in enumerate(items):
        place = f"[{index}]"
        if not isinstance(item, dict):
            raise FieldError("an item must be an object", code="invalid_type", place=place)
        kind = item.get("type", "message")
        if kind == "message" and item.get("role") != "assistant":
            role = item.get("role")
            if role not in ("user", "system", "developer"):
                raise FieldError("must be user, assistant, system or developer", place=f"{place}.role")
            messages.append({"role": role, "content": _text(item.get("content"), f"{place}.content")})
            is_open = False
        elif kind in _OUTPUTS:
            output = _text(item.get("output"), f"{place}.output")
            call_id = _string(item, "call_id", place)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
            is_open = False
        elif kind == "mcp_call":
            messages += _call_with_result(item, place)
            is_open = False
        elif kind == "mcp_list_tools":
            listed_names(item, place)  # the model does not read them: the tools of a request are in `tools`
        elif kind == "message" or kind == "reasoning" or kind in _CALLS:
            message = messages[-1] if is_open else {}
            if not is_open or not _fits(kind, message):
                message = {"role": "assistant", "content": None}
                messages.append(message)
            is_open = True
            _add(message, kind, item, place)
        else:
            detail = f"items of type {str(kind)[:40]!r} are not supported"
            raise FieldError(detail, code="unsupported_parameter", place=f"{place}.type")
    return [message for message in messages if not _is_empty(message)]


def _is_empty(message: dict[str, Any]) -> bool:
    """Reasoning that cannot be read, such as that of another server, and nothing else."""
    return message["role"] == "assistant" and message.keys() == {"role", "content"} and message["content"] is None


def _fits(kind: str, message: dict[str, Any]) -> bool:
    """Whether a message of the assistant has room for a further item: reasoning, then text, then calls."""
    if kind in _CALLS:
        return True
    has_text = message["content"] is not None or "tool_calls" in message
    return not has_text if kind == "message" else not has_text and "reasoning" not in message


def _add(message: dict[str, Any], kind: str, item: dict[str, Any], place: str) -> None:
    if kind == "message":
        message["content"] = _text(item.get("content"), f"{place}.content")
    elif kind == "reasoning":
        if reasoning := _reasoning(item, place):
            message["reasoning"] = reasoning
    else:
        name, namespace = _string(item, "name", place), item.get("namespace")
        if namespace is not None and not isinstance(namespace, str):
            raise FieldError("must be a text", code="invalid_type", place=f"{place}.namespace")
        if kind == "function_call":
            arguments = _string(item, "arguments", place)
        else:
            arguments = json.dumps({INPUT: _string(item, "input", place)}, ensure_ascii=False)
        function = {"name": flat_name(name, namespace), "arguments": arguments}
        call = {"id": _string(item, "call_id", place), "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)


def listed_names(item: dict[str, Any], place: str = "") -> tuple[str, tuple[str, ...]]:
    """The server and the names of an `mcp_list_tools` item. Raises FieldError."""
    tools = item.get("tools")
    label = _string(item, "server_label", place)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise FieldError("must be a list of tools", code="invalid_type", place=f"{place}.tools")
    return label, tuple(_string(tool, "name", f"{place}.tools[{index}]") for index, tool in enumerate(tools))


def _call_with_result(item: dict[str, Any], place: str) -> list[dict[str, Any]]:
    """A call that a server carried out, as the model made and read it."""
    call_id = _string(item, "id", place)
    call = {"type": "function_call", "call_id": call_id, "name": item.get("name"), "arguments": item.get("arguments")}
    message: dict[str, Any] = {"role": "assistant", "content": None}
    _add(message, "function_call", call, place)
    return [message, {"role": "tool", "tool_call_id": call_id, "content": result_text(item, place)}]


def result_text(item: dict[str, Any], place: str = "") -> str:
    """What the model reads of an `mcp_call`."""
    if item.get("error") is not None:
        return f"error: {item['error']}"
    return "" if item.get("output") is None else _string(item, "output", place)


def _reasoning(item: dict[str, Any], place: str) -> str | None:
    """The text of reasoning that this server wrote; of other servers' the summary."""
    for name in ("content", "summary"):
        if item.get(name) is not None and not isinstance(item[name], list):
            raise FieldError("must be a list of parts", code="invalid_type", place=f"{place}.{name}")
    if item.get("content"):
        return _text(item["content"], f"{place}.content")
    encrypted = item.get("encrypted_content")
    if isinstance(encrypted, str) and encrypted.startswith(_OPAQUE):
        try:
            return base64.b64decode(encrypted.removeprefix(_OPAQUE), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise FieldError("is not what this server sent", place=f"{place}.encrypted_content") from None
    return _text(item["summary"], f"{place}.summary") if item.get("summary") else None


def _string(item: dict[str, Any], name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise FieldError("must be a text", code="invalid_type", place=f"{place}.{name}")
    return value


def _text(content: Any, place: str) -> str:
    """A text, or parts that are text, as one text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise FieldError("must be a text or a list of parts", code="invalid_type", place=place)
    texts = []
    for index, part in enumerate(content):
        inner = f"{place}[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal":
            texts.append(_string(part, "refusal", inner))
        elif kind in _TEXTS:
            texts.append(_string(part, "text", inner))
        else:
            detail = f"parts of type {str(kind)[:40]!r} are not supported: {TEXT_ONLY}"
            raise FieldError(detail, code="unsupported_parameter", place=f"{inner}.type")
    return "\n".join(texts)
