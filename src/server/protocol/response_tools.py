"""Tools of the Responses API, as the functions that chat templates and grammars know.

A custom tool is a function with one text, `input`. A tool of a namespace is a function with the namespace in its name.
Types that this server has no use for, such as web_search, are skipped: coding agents send them to every server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import FieldError
from .fields import MAX_TOOLS
from .lark_grammar import NotRegular
from .lark_regex import regex_of

_NAME_CHARS = 128
INPUT = "input"  # of a custom tool


@dataclass(frozen=True, slots=True)
class NamedTool:
    """How calls of one function are shown: by the name that the client gave it."""

    name: str
    namespace: str | None
    is_custom: bool


@dataclass(frozen=True, slots=True)
class ResponseTools:
    """
    functions: tools of a chat request. places: of each, in the list, of the tool and of its parameters.
    named: by the name of the function. skipped: types of other tools.
    without_grammar: parameters of custom tools that have a grammar, which the description has: by the name of the
    function.
    """

    functions: list[dict[str, Any]] = field(default_factory=list)
    places: list[tuple[str, str]] = field(default_factory=list)
    named: dict[str, NamedTool] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    without_grammar: dict[str, dict[str, Any]] = field(default_factory=dict)

    def _add(self, tool: dict[str, Any], namespace: str | None, place: str) -> None:
        kind, name = tool.get("type"), tool.get("name")
        if kind not in ("function", "custom"):
            self.skipped.append(str(kind)[:64])
            return
        if not isinstance(name, str) or not name:
            raise FieldError("must be a text that is not empty", code="invalid_type", place=f"{place}.name")
        function_name = flat_name(name, namespace)
        if len(function_name) > _NAME_CHARS or not function_name.replace("-", "_").replace(".", "_").isidentifier():
            message = f"{function_name[:40]!r} must have at most {_NAME_CHARS} letters, digits, `_`, `-` and `.`"
            raise FieldError(message, place=f"{place}.name")
        if function_name in self.named:
            raise FieldError(f"an earlier tool has the same name, {function_name!r}", place=f"{place}.name")
        function: dict[str, Any] = {"name": function_name, "description": _text(tool, "description", place)}
        if kind == "custom":
            function |= _custom(tool, function["description"], place)
            if function["strict"]:
                self.without_grammar[function_name] = _input({"type": "string"})
        else:
            parameters = tool.get("parameters")
            if parameters is not None and not isinstance(parameters, dict):
                raise FieldError("must be an object", code="invalid_type", place=f"{place}.parameters")
            function["parameters"] = parameters
            function["strict"] = tool.get("strict") is True
        self.named[function_name] = NamedTool(name, namespace, kind == "custom")
        shown = {name: value for name, value in function.items() if value not in (None, False)}
        self.functions.append({"type": "function", "function": shown})
        self.places.append((place, f"{place}.{'format.definition' if kind == 'custom' else 'parameters'}"))


def flat_name(name: str, namespace: str | None) -> str:
    if not namespace:
        return name
    return namespace + name if namespace.endswith("_") else f"{namespace}__{name}"


def read_tools(tools: Sequence[Any]) -> ResponseTools:
    """Raises FieldError."""
    found = ResponseTools()
    for index, tool in enumerate(tools):
        place = f"[{index}]"
        if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
            raise FieldError("a tool must be an object with a `type`", code="invalid_type", place=place)
        if tool["type"] != "namespace":
            found._add(tool, None, place)
            continue
        members, namespace = tool.get("tools"), tool.get("name")
        if not isinstance(members, list) or not isinstance(namespace, str):
            raise FieldError("a namespace must have a `name` and `tools`", code="invalid_type", place=place)
        for number, member in enumerate(members):
            inner = f"{place}.tools[{number}]"
            if not isinstance(member, dict):
                raise FieldError("a tool must be an object with a `type`", code="invalid_type", place=inner)
            found._add(member, namespace, inner)
    if len(found.functions) > MAX_TOOLS:
        raise FieldError(f"must have at most {MAX_TOOLS} tools", code="array_above_max_length")
    return found


def _text(tool: dict[str, Any], name: str, place: str) -> str | None:
    value = tool.get(name)
    if value is not None and not isinstance(value, str):
        raise FieldError("must be a text", code="invalid_type", place=f"{place}.{name}")
    return value


def _custom(tool: dict[str, Any], description: str | None, place: str) -> dict[str, Any]:
    """A function whose one argument obeys the tool's grammar."""
    schema: dict[str, Any] = {"type": "string"}
    form = tool.get("format") or {"type": "text"}
    if not isinstance(form, dict) or form.get("type") not in ("text", "grammar"):
        raise FieldError("must have the type `text` or `grammar`", place=f"{place}.format")
    if form["type"] == "grammar":
        syntax, definition = form.get("syntax"), form.get("definition")
        if syntax not in ("lark", "regex") or not isinstance(definition, str) or not definition:
            message = "a grammar has a `syntax`, lark or regex, and a `definition`"
            raise FieldError(message, place=f"{place}.format")
        try:
            pattern = definition if syntax == "regex" else regex_of(definition)
        except NotRegular as problem:
            raise FieldError(str(problem), code="unsupported_parameter", place=f"{place}.format.definition") from None
        schema["pattern"] = f"^(?:{pattern})$"
        grammar = f"The input obeys this {'regular expression' if syntax == 'regex' else 'Lark grammar'}:\n{definition}"
        description = f"{description}\n\n{grammar}" if description else grammar
    return {"description": description, "parameters": _input(schema), "strict": "pattern" in schema}


def _input(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {INPUT: schema}, "required": [INPUT], "additionalProperties": False}
