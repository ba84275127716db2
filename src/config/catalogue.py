"""Every option as a record for programs, and three lists: effective, deprecated and refused options."""

from __future__ import annotations

from typing import Any

from .resolve.rules import rules_of
from .schema.options import Option, Status, options, options_of, section_flags, sections

STATUSES: tuple[Status, ...] = ("effective", "deprecated", "refused")


def records() -> list[dict[str, Any]]:
    """One record per option, including sections that are options on the command line (`--speculative-config`)."""
    found = [_record(option) for option in options().values()]
    return found + [_section_record(name) for name in dict.fromkeys(section_flags().values())]


def _record(option: Option) -> dict[str, Any]:
    return {
        "name": option.name.replace("_", "-"),
        "section": option.section,
        "path": option.path,
        "flags": list(option.flags),
        "env": option.variable,
        "type": option.type_name,
        "default": None if option.is_required or option.is_secret else option.show(option.default),
        "choices": list(option.choices),
        "unit": option.unit,
        "status": option.status,
        "replaced_by": list(option.replaced_by),
        "reason": option.reason,
        "reload": option.reload,
        "rules": [rule.id for rule in rules_of(option.path)],
        "description": option.description,
    }


def _section_record(name: str) -> dict[str, Any]:
    parts = [option for option in options_of(name) if option.status != "deprecated"]
    refused = [option for option in parts if option.status == "refused"]
    flags = [flag for flag, section in section_flags().items() if section == name]
    is_refused = len(refused) == len(parts)
    return {
        "name": flags[0].lstrip("-"),
        "section": name,
        "path": name,
        "flags": flags,
        "env": "",
        "type": "mapping",
        "default": {},
        "choices": [],
        "unit": None,
        "status": "refused" if is_refused else "effective",
        "replaced_by": [],
        "reason": refused[0].reason if is_refused else "",
        "reload": "process",
        "rules": sorted({rule.id for option in parts for rule in rules_of(option.path)}),
        "description": (sections()[name].__doc__ or "").strip(),
    }


def by_status() -> dict[Status, list[Option]]:
    return {status: [option for option in options().values() if option.status == status] for status in STATUSES}


def counts() -> dict[str, dict[Status, int]]:
    """Section -> status -> number of options; the header keys are under `manifest`."""
    found: dict[str, dict[Status, int]] = {}
    for option in options().values():
        row = found.setdefault(option.section or "manifest", dict.fromkeys(STATUSES, 0))
        row[option.status] += 1
    return found
