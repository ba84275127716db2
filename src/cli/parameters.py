"""The commands' own arguments as `engine explain` tells them, drawn from their declarations in app.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..config.page import Fact, Page


def parameter_pages(what: str) -> list[Page]:
    """Pages of every command that has a flag or an argument of this name: `--quick`, `chat --quick`, `bench-type`."""
    words = what.split()
    if not words or len(words) > 2:
        return []
    verb, name = (words[0], words[1]) if len(words) == 2 else ("", words[0])
    name = _normal(name)
    return [
        _page(record)
        for record in parameter_records()
        if (not verb or record["section"] == f"command:{verb}")
        and name in (record["name"], *map(_normal, record["flags"]))
    ]


def parameter_records() -> list[dict[str, Any]]:
    """In the form of config.catalogue.records."""
    return [_record(verb, parameter) for verb, parameter in _parameters()]


def _normal(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _parameters() -> Iterator[tuple[str, Any]]:
    from .app import verbs

    for verb, command in verbs().items():
        if command.hidden:
            continue
        for parameter in command.params:
            if parameter.name != "help" and not getattr(parameter, "hidden", False):
                yield verb, parameter


def _record(verb: str, parameter: Any) -> dict[str, Any]:
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
        "type": "flag" if is_option and parameter.is_flag else "text" + "?" * (default is None),
        "default": default,
        "choices": [],
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
        Fact("takes", ("true or false" if record["type"] == "flag" else "a text",)),
        Fact("default", (str(record["default"]).lower() if record["default"] is not None else "none",)),
        Fact("flags", tuple(record["flags"])),
        Fact("status", (record["status"],)),
    ]
    verb = record["section"].partition(":")[2]
    name = f"{verb} {record['flags'][0]}" if record["flags"] else f"{verb} {record['name'].upper()}"
    facts = [fact for fact in facts if fact.lines]
    return Page("argument", name, f"engine {name}", record["description"], tuple(facts))
