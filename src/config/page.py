"""One page of `engine explain`, and its formats: text, Markdown, a record. Does not depend on options."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_WRAP: Any = {"break_on_hyphens": False, "break_long_words": False, "drop_whitespace": True}


@dataclass(frozen=True, slots=True)
class Fact:
    """One entry of a page: a name and one or more lines."""

    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """The explanation of one thing. `facts` is its table, `see` the names of related pages."""

    kind: str  # option, section, rule, code, preset, list
    name: str
    title: str
    text: str
    facts: tuple[Fact, ...] = ()
    see: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "title": self.title,
            "text": self.text,
            "facts": {fact.name: list(fact.lines) for fact in self.facts},
            "see": list(self.see),
        }


def as_text(pages: Sequence[Page]) -> str:
    return "\n\n\n".join(_page_text(page) for page in pages)


def _page_text(page: Page) -> str:
    lines = [page.title]
    if page.text:
        lines += textwrap.wrap(page.text, 96, initial_indent="  ", subsequent_indent="  ", **_WRAP)
    if page.facts:
        lines.append("")
    width = min(36, max((len(fact.name) for fact in page.facts), default=0))
    for fact in page.facts:
        for index, line in enumerate(fact.lines):
            name = fact.name if index == 0 else ""
            start, hanging = f"  {name:<{width}}  ", " " * (width + 6)
            indent = line[: len(line) - len(line.lstrip())]
            wrapped = textwrap.wrap(line, 116, initial_indent=start + indent, subsequent_indent=hanging, **_WRAP)
            lines += wrapped or [start.rstrip()]
    return "\n".join(lines)


def as_markdown(pages: Sequence[Page]) -> str:
    return "\n\n".join("\n".join(markdown_lines(page)) for page in pages)


def markdown_lines(page: Page, level: int = 2) -> list[str]:
    """The page with a heading of this level."""
    lines = [f"{'#' * level} {page.title}", ""]
    if page.text:
        lines += [page.text, ""]
    if page.facts:
        lines += ["| | |", "|---|---|"]
        for fact in page.facts:
            code = page.kind == "option" and fact.name in ("file", "flags", "variable")
            said = "<br>".join(_cell(line, code) for line in fact.lines)
            lines.append(f"| {fact.name} | {said} |")
    return lines


def _cell(text: str, is_code: bool) -> str:
    text = text.replace("|", "\\|")
    if not is_code:
        return text.replace("<", "&lt;")
    indent = len(text) - len(text.lstrip())
    return "&nbsp;" * indent + f"`{text.strip()}`"
