"""The results of all clients, kept in record.json, and docs/guide/server/clients.md, which is written from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .cases import CASES, GROUPS
from .clients import CLIENTS, Client
from .judging import Verdict

RECORD = Path(__file__).with_name("record.json")
PAGE = Path(__file__).parents[2] / "docs" / "guide" / "server" / "clients.md"
_ERRORS = [case for case in CASES if case.expects]


def read() -> dict[str, Any]:
    """Records by name of the client."""
    found: dict[str, Any] = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    return found


def entry(client: Client, run: Mapping[str, str], verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    """run: `date`, and the versions of `stoker` and `runtime`. verdicts: by name of the case."""
    return {
        **run,
        "packages": list(client.packages),
        "verdicts": {
            name: {key: value for key, value in asdict(each).items() if value} for name, each in verdicts.items()
        },
    }


def write(record: dict[str, Any]) -> None:
    ordered = {name: record[name] for name in CLIENTS if name in record}
    RECORD.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(page(ordered), "utf-8")


def page(record: Mapping[str, Any]) -> str:
    notes: dict[str, int] = {}  # text -> number
    names = [name for name in CLIENTS if name in record]
    lines = [
        "<!-- Written by `make clients`; do not edit. -->",
        "",
        "# Clients",
        "",
        "`make clients` installs each of these clients in an environment of its own, runs it against",
        "`engine up deployments/tiny.yaml`, and writes this page. The link of a client leads to the code that was run.",
        "",
        "| client | packages | runtime | Stoker | date |",
        "|---|---|---|---|---|",
        *(_client(name, record[name]) for name in names),
        "",
        "## What works",
        "",
        "- **works**: the client gives the same answer as plain HTTP, or the class of error that it documents.",
        "- **refused**: this release does not support it; the client's error has the message in the note.",
        "- **differs**: the result is another one; the note says which.",
        "- An empty cell: the client has no such function.",
    ]
    for title, cases in GROUPS.items():
        cells = {name: [_cell(record[name]["verdicts"].get(case.name, {}), notes) for case in cases] for name in names}
        shown = [name for name in names if any(cells[name])]
        lines += ["", f"### {title}", "", f"| | {' | '.join(shown)} |", "|---|" + "---|" * len(shown)]
        for index, case in enumerate(cases):
            lines.append(f"| {case.title} | {' | '.join(cells[name][index] for name in shown)} |")
    if notes:
        lines += [
            "",
            "### Notes",
            "",
            *(f'{number}. <a id="note-{number}"></a>{_safe(text)}' for text, number in notes.items()),
        ]
    lines += ["", "## Errors", "", "The class of the error that each client raises.", ""]
    lines += [f"| | {' | '.join(case.title for case in _ERRORS)} |", "|---|" + "---|" * len(_ERRORS)]
    for name in names:
        found = [record[name]["verdicts"].get(case.name, {}).get("error", "") for case in _ERRORS]
        lines.append(f"| {name} | {' | '.join(f'`{error}`' if error else '' for error in found)} |")
    return "\n".join(lines) + "\n"


def _client(name: str, found: Mapping[str, Any]) -> str:
    client = CLIENTS[name]
    suffix = "py" if client.runtime == "python" else "mjs"
    packages = "<br>".join(f"`{package}`" for package in found["packages"])
    link = f"[{name}](../../../tools/clients/adapters/{client.adapter}.{suffix})"
    return f"| {link} | {packages} | {found['runtime']} | {found['stoker']} | {found['date']} |"


def _cell(verdict: Mapping[str, str], notes: dict[str, int]) -> str:
    result = verdict.get("result", "absent")
    if result == "absent":
        return ""
    if not verdict.get("note"):
        return result
    number = notes.setdefault(verdict["note"], len(notes) + 1)
    return f"{result} [{number}](#note-{number})"


def _safe(text: str) -> str:
    """Text for Markdown; in code spans `<` is shown as it is."""
    return "`".join(part if index % 2 else part.replace("<", "&lt;") for index, part in enumerate(text.split("`")))
