"""`engine explain`: what an option, rule, error code or preset means, and the status of all options."""

from __future__ import annotations

import json
from typing import Any, Literal

from ..config.catalogue import STATUSES, by_status, counts, records
from ..config.diagnostics import FORMAT_VERSION
from ..config.explain import find, first_sentence
from ..config.page import as_markdown, as_text
from ..config.yaml_writer import inline
from .console import print_message, print_result
from .metric_pages import metric_pages
from .parameters import Commands, parameter_pages, parameter_records

EXIT_NOT_FOUND = 1
Format = Literal["text", "json", "md"]


def run(what: str, commands: Commands, *, output: Format = "text", recursive: bool = False) -> int:
    """Print the pages for `what`. Exit code 1 if nothing has that name or mentions it."""
    pages = metric_pages(what) or find(what, recursive)
    own = parameter_pages(what, commands)
    if own and all(page.kind == "list" for page in pages):
        pages = own  # more precise than a list of similar names
    else:
        pages += own
    if not pages:
        print_message(f"error: nothing has the name `{what}` or mentions it\n  = more: engine explain")
        return EXIT_NOT_FOUND
    if output == "json":
        _say_json(pages=[page.as_dict() for page in pages])
    else:
        print_result(as_markdown(pages) if output == "md" else as_text(pages))
    return 0


def run_all(commands: Commands, *, output: Format = "text") -> int:
    """Every option: one line each, or one record each in JSON; arguments of the verbs last."""
    every = [*records(), *parameter_records(commands)]
    if output == "json":
        _say_json(options=every)
        return 0
    rows = [(r["path"], r["status"], inline(r["default"]), first_sentence(r["description"])) for r in every]
    if output == "md":
        lines = ["| option | status | default | |", "|---|---|---|---|"]
        print_result("\n".join([*lines, *(f"| `{a}` | {b} | `{c}` | {d} |" for a, b, c, d in rows)]))
        return 0
    width = max(len(row[0]) for row in rows)
    print_result("\n".join(f"{a:<{width}}  {b:<10}  {c:<16.16}  {d}" for a, b, c, d in rows))
    return 0


def run_status(*, output: Format = "text") -> int:
    """Three lists: effective, deprecated and refused options, and the number of each per section."""
    lists = by_status()
    if output == "json":
        _say_json(
            counts=counts(),
            **{
                status: [{"path": option.path, "reason": option.reason} for option in lists[status]]
                for status in STATUSES
            },
        )
        return 0
    said = {
        "effective": "effective: changes what the system does",
        "deprecated": "deprecated: accepted with a warning and mapped onto current options",
        "refused": "refused: only the default is accepted, because it describes what this build does",
    }
    is_markdown = output == "md"
    lines = []
    for status in STATUSES:
        lines += [f"{'## ' * is_markdown}{said[status]} ({len(lists[status])})", ""]
        width = max(len(option.path) for option in lists[status])
        for option in lists[status]:
            text = option.reason or first_sentence(option.description)
            lines.append(f"- `{option.path}`: {text}" if is_markdown else f"  {option.path:<{width}}  {text}")
        lines.append("")
    lines += [f"{'## ' * is_markdown}counts", ""]
    for section, row in counts().items():
        numbers = ", ".join(f"{number} {status}" for status, number in row.items() if number)
        lines.append(f"- `{section}`: {numbers}" if is_markdown else f"  {section:<20}{numbers}")
    print_result("\n".join(lines))
    return 0


def _say_json(**content: Any) -> None:
    print_result(json.dumps({"format_version": FORMAT_VERSION, **content}, indent=2))
