"""The results: JSON that is complete after every attack, and a table of them."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from statistics import median
from typing import Any

from .verdict import Verdict

FORMAT = 1
BEGIN, END = "<!-- results -->", "<!-- end of results -->"


class Record:
    def __init__(self, path: Path | None, seed: int) -> None:
        """path: None keeps the results in memory."""
        self._path = path
        self.verdicts: list[Verdict] = []
        self._head: dict[str, Any] = {
            "format": FORMAT,
            "seed": seed,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "python": platform.python_version(),
        }
        self._write()

    def add(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        partial = self._path.with_name(f"{self._path.name}.part")
        content = {**self._head, "verdicts": [verdict.as_dict() for verdict in self.verdicts]}
        partial.write_text(json.dumps(content, indent=1) + "\n")
        partial.replace(self._path)


def read_verdicts(path: Path) -> list[Verdict]:
    """Raises ValueError for a file of another format."""
    content = json.loads(path.read_text())
    if content.get("format") != FORMAT:
        raise ValueError(f"{path} does not have the format of results")
    return [Verdict.from_dict(fields) for fields in content["verdicts"]]


def write_page(page: Path, results: list[Path]) -> None:
    """Replace the results in a page, between its two marks. Raises ValueError if it has none."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{page} does not have the marks {BEGIN} and {END}")
    runs = [json.loads(path.read_text()) for path in results]
    verdicts = [verdict for path in results for verdict in read_verdicts(path)]
    dates, pythons, seeds = (sorted({str(run[name]) for run in runs}) for name in ("date", "python", "seed"))
    slow = [each.slowness for each in verdicts]
    text = (
        f"Date {', '.join(dates)}, Python {', '.join(pythons)}, seed {', '.join(seeds)}; servers that are not attacked "
        f"were {min(slow):g} to {max(slow):g} times as slow as on an idle machine.\n\n{summary(verdicts)}\n"
    )
    fallen = [each for each in verdicts if not each.held]
    if fallen:
        text += "\n| attack that succeeded | how |\n|---|---|\n"
        text += "".join(f"| `{each.id}` | {_cell('; '.join(each.reasons), 200)} |\n" for each in fallen)
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}")


def summary(verdicts: list[Verdict]) -> str:
    """Markdown; one line for each family, with the worst values of its attacks."""
    lines = [
        "| family | attacks | fell | /health p99, median and worst (ms) | /health max (ms) | memory growth (MiB) "
        "| minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in dict.fromkeys(each.family for each in verdicts):
        own = [each for each in verdicts if each.family == family]
        seen = [each.observed.health for each in own if each.observed]
        grown = [each.peak_mib - each.before.anonymous_mib for each in own if each.before and each.peak_mib is not None]
        p99 = f"{median(each.p99 for each in seen):.0f}, {max(each.p99 for each in seen):.0f}" if seen else ""
        cells = (
            family,
            str(len(own)),
            str(sum(not each.held for each in own)),
            p99,
            f"{max(each.max for each in seen):.0f}" if seen else "",
            f"{max(grown):.0f}" if grown else "",
            f"{sum(each.seconds for each in own) / 60:.0f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table(verdicts: list[Verdict]) -> str:
    """Markdown; below it, the reasons of what fell."""
    lines = [
        "| attack | verdict | s | /health p50, p99, max (ms) | completion p99 (ms) | memory before, peak, after (MiB) "
        "| descriptors | threads | seen |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in verdicts:
        health = completion = memory = fds = threads = ""
        if each.observed:
            seen = each.observed.health
            health = f"{seen.p50:.0f}, {seen.p99:.0f}, {seen.max:.0f}"
            completion = f"{each.observed.completion.p99:.0f}"
        if each.before and each.after:
            memory = f"{each.before.anonymous_mib:.0f}, {each.peak_mib or 0:.0f}, {each.after.anonymous_mib:.0f}"
            fds = f"{each.before.num_fds} -> {each.after.num_fds}"
            threads = f"{each.before.num_threads} -> {each.after.num_threads}"
        elif each.peak_mib is not None:
            memory = f"{each.peak_mib:.0f}"
        word = "held" if each.held else "**fell**"
        cells = (each.id, word, f"{each.seconds:.0f}", health, completion, memory, fds, threads, _cell(each.note))
        lines.append("| " + " | ".join(cells) + " |")
    fallen = [each for each in verdicts if not each.held]
    lines.append(f"\n{len(verdicts)} attacks, {len(fallen)} fell.")
    for each in fallen:
        lines += [f"\n{each.id}: repeat with `{each.repeat}`", *(f"- {reason}" for reason in each.reasons)]
    return "\n".join(lines)


def _cell(text: str, max_chars: int = 80) -> str:
    return " ".join(text.replace("|", "/").split())[:max_chars]
