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
from .history import History, kind_of, string
from .response_tools import INPUT, flat_name
from .unserved import TEXT_ONLY

_OPAQUE = "stoker1:"  # begins `encrypted_content`: reasoning of this server, which clients send back unread
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
# Calls of tools that OpenAI's models know by themselves and clients run: the function's name, and the item's field with
# what it is called with.
_KNOWN_CALLS = {
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
}
_CALLS = ("function_call", "custom_tool_call", *_KNOWN_CALLS)
_OUTPUTS = ("function_call_output", "custom_tool_call_output", *(f"{kind}_output" for kind in _KNOWN_CALLS))
# What only OpenAI's server runs or reads: the model need not see it.
_SKIPPED = frozenset({
    "web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call", "computer_call",
    "tool_search_call", "tool_search_output", "additional_tools", "compaction", "compaction_trigger",
    "configuration_update", "mcp_approval_request", "mcp_approval_response", "item_reference", "program",
    "program_output",
})  # fmt: skip


def opaque(reasoning: str) -> str:
    """Reasoning in the form of `encrypted_content`. It is no secret: the client gets the text as well."""
    return _OPAQUE + base64.b64encode(reasoning.encode()).decode()


def _type_of(item: dict[str, Any]) -> Any:
    """Type of an item, which messages and references need not have."""
    return kind_of(item) or ("item_reference" if {"id"} <= item.keys() <= {"id", "type"} else "message")


def with_parts(item: dict[str, Any]) -> dict[str, Any]:
    """An item of an input as the API shows it: also of a message that a client sent in short, all is written out."""
    if _type_of(item) != "message":
        return item
    content = item["content"]
    if isinstance(content, str):
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        content = [{"type": kind, "text": content}]
    return {"type": "message", **item, "content": content}


def messages_of(items: Sequence[Any]) -> History:
    """Raises FieldError with the place of the first wrong item."""
    found = History()
    is_open = False  # the last message is the assistant's, and the next item may belong to it
    for index, item in enumerate(items):
        place = f"[{index}]"
        if not isinstance(item, dict):
            raise FieldError("an item must be an object", code="invalid_type", place=place)
        kind = _type_of(item)
        if kind == "message" and item.get("role") != "assistant":
            role = item.get("role")
            if role not in ("user", "system", "developer"):
                raise FieldError("must be user, assistant, system or developer", place=f"{place}.role")
            found.add({"role": role, "content": _text(item.get("content"), f"{place}.content")}, place)
            is_open = False
        elif kind in _OUTPUTS:
            found.add(_output(kind, item, place), place)
            is_open = False
        elif kind == "mcp_call":
            for message in _call_with_result(item, place):
                found.add(message, place)
            is_open = False
        elif kind == "mcp_list_tools":
            listed_names(item, place)  # the model does not read them: the tools of a request are in `tools`
        elif kind in _SKIPPED:
            found.skip(kind)
        elif kind == "message" or kind == "reasoning" or kind in _CALLS:
            message = found.messages[-1] if is_open else {}
            if not is_open or not _fits(kind, message):
                message = {"role": "assistant", "content": None}
                found.add(message, place)
            is_open = True
            _add(message, kind, item, place)
        else:
            detail = f"items of type {str(kind)[:40]!r} are not supported"
            raise FieldError(detail, code="unsupported_parameter", place=f"{place}.type")
    kept = [number for number, message in enumerate(found.messages) if not _is_empty(message)]
    return History([found.messages[each] for each in kept], [found.places[each] for each in kept], found.skipped)


def _is_empty(message: dict[str, Any]) -> bool:
    """Reasoning that cannot be read, such as another server's, and nothing else."""
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
        call = {"id": string(item, "call_id", place), "type": "function", "function": _function(kind, item, place)}
        message.setdefault("tool_calls", []).append(call)


def _function(kind: str, item: dict[str, Any], place: str) -> dict[str, Any]:
    """What a call calls: its name and arguments."""
    if kind in _KNOWN_CALLS:
        known_name, field = _KNOWN_CALLS[kind]
        if not isinstance(item.get(field), dict):
            raise FieldError("must be an object", code="invalid_type", place=f"{place}.{field}")
        return {"name": known_name, "arguments": json.dumps(item[field], ensure_ascii=False)}
    name, namespace = string(item, "name", place), item.get("namespace")
    if namespace is not None and not isinstance(namespace, str):
        raise FieldError("must be a text", code="invalid_type", place=f"{place}.namespace")
    if kind == "function_call":
        arguments = string(item, "arguments", place)
    else:
        arguments = json.dumps({INPUT: string(item, "input", place)}, ensure_ascii=False)
    return {"name": flat_name(name, namespace), "arguments": arguments}


def _output(kind: str, item: dict[str, Any], place: str) -> dict[str, Any]:
    """The result of a call. Without an id it belongs to the call before it."""
    output = item.get("output")
    if kind == "shell_call_output" and isinstance(output, list):
        texts = []
        for index, part in enumerate(output):
            if not isinstance(part, dict):
                raise FieldError("must be an object", code="invalid_type", place=f"{place}.output[{index}]")
            texts += [str(part[name]) for name in ("stdout", "stderr") if part.get(name)]
        text = "\n".join(texts)
    elif kind == "apply_patch_call_output" and output is None:
        text = str(item.get("status", ""))
    else:
        text = _text(output, f"{place}.output")
    name = "id" if kind == "local_shell_call_output" and "call_id" not in item else "call_id"
    if item.get(name) is None:
        return {"role": "tool", "content": text}
    return {"role": "tool", "tool_call_id": string(item, name, place), "content": text}


def listed_names(item: dict[str, Any], place: str = "") -> tuple[str, tuple[str, ...]]:
    """The server and the names of an `mcp_list_tools` item. Raises FieldError."""
    tools = item.get("tools")
    label = string(item, "server_label", place)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise FieldError("must be a list of tools", code="invalid_type", place=f"{place}.tools")
    return label, tuple(string(tool, "name", f"{place}.tools[{index}]") for index, tool in enumerate(tools))


def _call_with_result(item: dict[str, Any], place: str) -> list[dict[str, Any]]:
    """A call that a server carried out, as the model made and read it."""
    call_id = string(item, "id", place)
    call = {"type": "function_call", "call_id": call_id, "name": item.get("name"), "arguments": item.get("arguments")}
    message: dict[str, Any] = {"role": "assistant", "content": None}
    _add(message, "function_call", call, place)
    return [message, {"role": "tool", "tool_call_id": call_id, "content": result_text(item, place)}]


def result_text(item: dict[str, Any], place: str = "") -> str:
    """What the model reads of an `mcp_call`."""
    if item.get("error") is not None:
        return f"error: {item['error']}"
    return "" if item.get("output") is None else string(item, "output", place)


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


def _text(content: Any, place: str) -> str:
    """A text, or parts that are text, as one text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise FieldError("must be a text or a list of parts", code="invalid_type", place=place)
    texts = []
    for index, part in enumerate(content):
        inner = f"{place}[{index}]"
        kind = kind_of(part)
        if kind == "refusal":
            texts.append(string(part, "refusal", inner))
        elif kind in _TEXTS:
            texts.append(string(part, "text", inner))
        else:
            detail = f"parts of type {str(kind)[:40]!r} are not supported: {TEXT_ONLY}"
            raise FieldError(detail, code="unsupported_parameter", place=f"{inner}.type")
    return "\n".join(texts)
