"""`engine explain`: what an option, rule, error code or preset means, and which options do what."""

from __future__ import annotations

import json
from typing import Any

from ..config.catalogue import STATUSES, by_status, counts, records
from ..config.diagnostics import FORMAT_VERSION
from ..config.errors import EXIT_WRONG_COMMAND_LINE
from ..config.explain import find, first_sentence
from ..config.page import as_markdown, as_text
from ..config.source.scalars import as_yaml_value
from .console import say, tell
from .metric_pages import metric_pages
from .parameters import parameter_pages, parameter_records

EXIT_NOT_FOUND = 1


def run(what: str, *, output: str = "text", recursive: bool = False) -> int:
    """Print the pages for `what`. Exit code 1 if nothing has that name or mentions it."""
    if (code := _check(output)) != 0:
        return code
    pages = metric_pages(what) or find(what, recursive)
    own = parameter_pages(what)
    if own and all(page.kind == "list" for page in pages):
        pages = own  # better than a list of what sounds alike
    else:
        pages += own
    if not pages:
        tell(f"error: nothing is called or mentions `{what}`\n  = more: engine explain")
        return EXIT_NOT_FOUND
    if output == "json":
        _say_json(pages=[page.as_dict() for page in pages])
    else:
        say(as_markdown(pages) if output == "md" else as_text(pages))
    return 0


def run_all(output: str = "text") -> int:
    """Every option: one line each, or one record each in JSON, those of the commands last."""
    if (code := _check(output)) != 0:
        return code
    every = [*records(), *parameter_records()]
    if output == "json":
        _say_json(options=every)
        return 0
    rows = [(r["path"], r["status"], as_yaml_value(r["default"]), first_sentence(r["description"])) for r in every]
    if output == "md":
        lines = ["| option | status | default | |", "|---|---|---|---|"]
        say("\n".join([*lines, *(f"| `{a}` | {b} | `{c}` | {d} |" for a, b, c, d in rows)]))
        return 0
    width = max(len(row[0]) for row in rows)
    say("\n".join(f"{a:<{width}}  {b:<10}  {c:<16.16}  {d}" for a, b, c, d in rows))
    return 0


def run_status(output: str = "text") -> int:
    """Three lists: what changes something, what stands for another option, what takes its default alone."""
    if (code := _check(output)) != 0:
        return code
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
        "deprecated": "deprecated: accepted with a warning, and mapped onto what there is now",
        "refused": "refused: only the default is taken, for it says what this build does",
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
        told = ", ".join(f"{number} {status}" for status, number in row.items() if number)
        lines.append(f"- `{section}`: {told}" if is_markdown else f"  {section:<20}{told}")
    say("\n".join(lines))
    return 0


def _check(output: str) -> int:
    if output in ("text", "json", "md"):
        return 0
    tell(f"error: no such output `{output}`; there are text, json and md")
    return EXIT_WRONG_COMMAND_LINE


def _say_json(**content: Any) -> None:
    say(json.dumps({"format_version": FORMAT_VERSION, **content}, indent=2))
