"""Arguments of the verbs for `engine explain`, read from their declarations."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..config.page import Fact, Page

Commands = Mapping[str, Any]  # every verb by name, as Typer reads it
_TYPES = {bool: "flag", int: "whole", float: "number", str: "text"}
_TAKES = {"flag": "true or false", "whole": "a whole number", "number": "a number", "text": "a text"}


def parameter_pages(what: str, commands: Commands) -> list[Page]:
    """Pages of every verb that has a flag or an argument of this name: `--quick`, `chat --quick`, `bench-type`."""
    words = what.split()
    if not words or len(words) > 2:
        return []
    verb, name = (words[0], words[1]) if len(words) == 2 else ("", words[0])
    return [
        _page(_record(*found))
        for found in _parameters(commands)
        if verb in ("", found[0]) and _normal(name) in _names(found[2])
    ]


def parameter_records(commands: Commands) -> list[dict[str, Any]]:
    """Records in the format of config.catalogue.records."""
    return [_record(*found) for found in _parameters(commands)]


def _parameters(commands: Commands) -> Iterator[tuple[str, Any, Any]]:
    """Verb, command and parameter of every parameter."""
    for verb, command in commands.items():
        for parameter in command.params:
            if parameter.name != "help":
                yield verb, command, parameter


def _names(parameter: Any) -> set[str]:
    return {_normal(name) for name in (parameter.name, *parameter.opts, *parameter.secondary_opts)}


def parameter_type(command: Any, parameter: Any) -> tuple[str, tuple[str, ...]]:
    """The type of a verb's parameter - flag, whole, number, text, choice - and its choices."""
    annotation = _annotations(command.callback)[parameter.name]
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    for part in parts:
        if get_origin(part) is Literal:
            return "choice", get_args(part)
    return next((_TYPES[part] for part in parts if part in _TYPES), "text"), ()


@cache
def _annotations(function: Any) -> dict[str, Any]:
    return get_type_hints(function)


def _normal(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _record(verb: str, command: Any, parameter: Any) -> dict[str, Any]:
    kind, choices = parameter_type(command, parameter)
    is_option = parameter.param_type_name == "option"
    flags = [*parameter.opts, *parameter.secondary_opts] if is_option else []
    name = _normal(flags[0]) if flags else parameter.name.replace("_", "-")
    default = None if callable(parameter.default) else parameter.default
    return {
        "name": name,
        "section": f"command:{verb}",
        "path": f"{verb} {flags[0] if flags else name}",
        "flags": flags,
        "env": "",
        "type": f"{kind}?" if default is None and kind != "flag" else kind,
        "default": default,
        "choices": list(choices),
        "unit": None,
        "status": "effective",
        "replaced_by": [],
        "reason": "",
        "reload": "process",
        "rules": [],
        "description": getattr(parameter, "help", None) or "",
    }


def _page(record: dict[str, Any]) -> Page:
    facts = [
        Fact("takes", (", ".join(record["choices"]) or _TAKES[record["type"].rstrip("?")],)),
        Fact("default", (str(record["default"]).lower() if record["default"] is not None else "none",)),
        Fact("flags", tuple(record["flags"])),
        Fact("status", (record["status"],)),
    ]
    verb = record["section"].partition(":")[2]
    name = f"{verb} {record['flags'][0]}" if record["flags"] else f"{verb} {record['name'].upper()}"
    facts = [fact for fact in facts if fact.lines]
    return Page("argument", name, f"engine {name}", record["description"], tuple(facts))
