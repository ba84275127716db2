"""Renders a record as tables: medians of the rounds, and medians of the ratios within rounds."""

from __future__ import annotations

import statistics
from typing import Any

from .contestants import CONTESTANTS, SERVED, WORKLOADS, Contestant
from .record import Record, is_slow

GROUPS = {
    "bf16": "bfloat16, tokens/s",
    "int8": "8-bit weights, tokens/s",
    "int4": "4-bit weights, the output layer in 8, tokens/s",
    "int4_pure": "4-bit weights, the output layer too, tokens/s",
    "served": "through HTTP",
}
SERVED_ROWS = {  # row -> field of a cell, factor
    "output tokens/s": ("rate", 1.0),
    "time to the first token, ms": ("first_token_s", 1000.0),
    "between tokens, ms": ("inter_token_s", 1000.0),
}


def tables(record: Record) -> str:
    """Markdown: a table for each group with results, then missing results with their reasons."""
    parts = [part for group in GROUPS if (part := _table(record, group))]
    notes = _notes(record)
    return "\n\n".join(parts + (["\n".join(notes)] if notes else [])) + "\n"


def members(record: Record, group: str) -> list[Contestant]:
    """Contestants of a group that are in the record, including failed ones."""
    content = record.content
    known = {each["contestant"] for each in content["starts"] + content["cells"]} | set(content["left_out"])
    return [each for each in CONTESTANTS.values() if each.group == group and each.name in known]


def values(record: Record, contestant: str, workload: str, field: str = "rate") -> dict[int, float]:
    """Values of a field by round."""
    return {cell["round"]: cell[field] for cell in record.cells(contestant, workload) if field in cell}


def ratio(ours: dict[int, float], theirs: dict[int, float]) -> float | None:
    """Median of the ratios of rounds that both have."""
    shared = [ours[number] / theirs[number] for number in ours if number in theirs]
    return statistics.median(shared) if shared else None


def _table(record: Record, group: str) -> str:
    names = [each.name for each in members(record, group)]
    if not names:
        return ""
    rows = []
    for workload in WORKLOADS:
        if any(record.cells(name, workload) for name in names):
            shown = SERVED_ROWS if group == "served" else {"": ("rate", 1.0)}
            for label, (field, factor) in shown.items():
                rows.append(_row(record, names, workload, label, field, factor))
    rows.append(_start_row(record, names, "ready, s", "ready_s", 1.0))
    rows.append(_start_row(record, names, "peak private memory, GiB", "peak_private_bytes", 1 / 1024**3))
    head = [GROUPS[group], *names, *(f"{names[0]} / {peer}" for peer in names[1:])]
    lines = ["| " + " | ".join(row) + " |" for row in [head, *rows]]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _row(record: Record, names: list[str], workload: str, label: str, field: str, factor: float) -> list[str]:
    found = [values(record, name, workload, field) for name in names]
    middle = []
    for name, each in zip(names, found, strict=True):
        cells = record.cells(name, workload)
        if each:
            mark = " ¹" if any(map(is_slow, cells)) else ""
            middle.append(f"{statistics.median(each.values()) * factor:.1f}{mark}")
        else:
            middle.append("failed" if cells else "-")
    return [f"{workload}, {label}" if label else workload, *middle, *_ratios(found)]


def _start_row(record: Record, names: list[str], label: str, field: str, factor: float) -> list[str]:
    starts = record.content["starts"]
    found = [{each["round"]: each[field] for each in starts if each["contestant"] == name} for name in names]
    middle = [f"{statistics.median(each.values()) * factor:.1f}" if each else "-" for each in found]
    return [label, *middle, *_ratios(found)]


def _ratios(found: list[dict[int, float]]) -> list[str]:
    return ["-" if (each := ratio(found[0], peer)) is None else f"{each:.2f}x" for peer in found[1:]]


def _notes(record: Record) -> list[str]:
    content: dict[str, Any] = record.content
    notes = [f"- {name} is left out: {reason}" for name, reason in content["left_out"].items()]
    notes += [
        f"- {cell['contestant']} failed at {cell['workload']} in round {cell['round'] + 1}: {cell['error']}"
        for cell in content["cells"]
        if "error" in cell
    ]
    requested = content["environment"].get("workloads", WORKLOADS)
    for group in GROUPS:
        for each in members(record, group):
            missing = [name for name in requested if name not in each.workloads and name not in SERVED]
            if missing and each.absent:
                notes.append(f"- {each.name} does not run {', '.join(missing)}: {each.absent}")
    if any(map(is_slow, content["cells"])):
        notes.append("- ¹ measured in one round only, because it is slow")
    shares = [cell["share_of_others"] for cell in content["cells"] if "share_of_others" in cell]
    if shares:
        notes.append(
            f"- other processes took {100 * statistics.median(shares):.0f} % of the cores' time at the median of all "
            f"measurements, {100 * max(shares):.0f} % at most"
        )
    return notes
