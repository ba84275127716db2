"""Reads which tools an answer calls: `tool_choice` and `parallel_tool_calls`, the same for all dialects of the API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .errors import bad_request

Mode = Literal["auto", "none", "required", "named"]
_FORMS = "`none`, `auto`, `required`, a function, or `allowed_tools`"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """names: the tools that may be called, a subset of the prompt's; of `named` the one that is called."""

    mode: Mode
    names: tuple[str, ...]

    @property
    def reads_calls(self) -> bool:
        return self.mode != "none" and bool(self.names)


def read_choice(value: Any, names: Sequence[str]) -> ToolChoice:
    """names: of all tools of the request. Raises ApiError with `tool_choice`."""
    known = tuple(names)
    if value is None or value == "auto":
        return ToolChoice("auto", known)
    if value == "none":
        return ToolChoice("none", ())
    if value == "required":
        if not known:
            raise _wrong("`tool_choice` asks for a call, but the request has no tools that the model can call")
        return ToolChoice("required", known)
    if not isinstance(value, dict):
        raise _wrong(f"`tool_choice` must be {_FORMS}")
    kind = value.get("type")
    if kind in ("function", "custom"):
        inner = value.get(kind)
        name = inner.get("name") if isinstance(inner, dict) else value.get("name")
        return ToolChoice("named", (_known(name, known, "tool_choice"),))
    if kind == "allowed_tools":
        inner = value.get("allowed_tools")
        return _allowed(inner if isinstance(inner, dict) else value, known)
    raise _wrong(f"`tool_choice` must be {_FORMS}")


def _allowed(value: dict[str, Any], known: tuple[str, ...]) -> ToolChoice:
    mode, tools = value.get("mode", "auto"), value.get("tools")
    if mode not in ("auto", "required"):
        raise _wrong('the `mode` of `allowed_tools` must be "auto" or "required"')
    if not isinstance(tools, list) or not tools:
        raise _wrong("the `tools` of `allowed_tools` must be a list that is not empty")
    names = []
    for index, tool in enumerate(tools):
        inner = tool.get("function") if isinstance(tool, dict) else None
        name = inner.get("name") if isinstance(inner, dict) else tool.get("name") if isinstance(tool, dict) else None
        names.append(_known(name, known, f"tool_choice.tools[{index}]"))
    return ToolChoice(mode, tuple(dict.fromkeys(names)))


def _known(name: Any, known: tuple[str, ...], param: str) -> str:
    if not isinstance(name, str):
        raise bad_request(f"`{param}` must have the name of a tool", param=param)
    if name not in known:
        raise bad_request(f"`tool_choice` names the function {name[:100]!r}, which is not in `tools`", param=param)
    return name


def _wrong(message: str) -> Exception:
    return bad_request(message, param="tool_choice")
