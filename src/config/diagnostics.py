"""One finding about a deployment, and its formats: text for people, JSON for programs, lines for GitHub.

error[C103]: no such key `cache.block_sise`
  --> deploy.yaml:5:3
 5 |   block_sise: 16
   |   ^^^^^^^^^^ did you mean `cache.block_size`?
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .codes import CODES
from .exit_codes import EXIT_INVALID_CONFIGURATION
from .source_text import Span, printable

FORMAT_VERSION = 1
MAX_FINDINGS = 100  # shown in one run
Severity = Literal["error", "warning"]
OutputFormat = Literal["text", "json", "github"]


@dataclass(frozen=True, slots=True)
class Label:
    """A place and a text about it."""

    span: Span
    text: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", printable(self.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """`labels` are the places involved, the main one first. `notes` are facts, `fixes` next steps."""

    code: str
    message: str
    severity: Severity = "error"
    path: str | None = None  # dotted path of the option
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()  # names that may have been meant
    exit_code: int = -1

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", printable(self.message))
        for name in ("notes", "fixes"):
            object.__setattr__(self, name, tuple(map(printable, getattr(self, name))))
        if self.exit_code < 0:
            code = CODES.get(self.code)
            object.__setattr__(self, "exit_code", code.exit_code if code else EXIT_INVALID_CONFIGURATION)

    @property
    def is_error(self) -> bool:
        return self.severity == "error"

    def as_text(self) -> str:
        width = max((len(str(label.span.line)) for label in self.labels if label.span.source.is_numbered), default=1)
        lines = [f"{self.severity}[{self.code}]: {self.message}"]
        for label in self.labels:
            lines += _snippet(label, width)
        margin = " " * (width + 2)
        lines += [f"{margin}= {note}" for note in self.notes]
        lines += [f"{margin}{'= fix:' if not index else '      '} {fix}" for index, fix in enumerate(self.fixes)]
        if not self.suggestions:
            lines.append(f"{margin}= more: engine explain {self.code}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "path": self.path,
            "places": [_place(label) for label in self.labels],
            "notes": list(self.notes),
            "fixes": list(self.fixes),
            "suggestions": list(self.suggestions),
        }

    def as_github(self) -> str:
        properties = [f"title={self.code}"]
        for label in self.labels[:1]:
            span = label.span
            if span.source.is_numbered:
                properties += [f"file={_escape(span.source.name, True)}", f"line={span.line}", f"col={span.column}"]
                properties.append(f"endColumn={span.line_end}")
        texts = [self.message, *(label.text for label in self.labels if label.text), *self.notes, *self.fixes]
        return f"::{self.severity} {','.join(properties)}::{_escape('. '.join(texts))}"


def _escape(text: str, in_property: bool = False) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if in_property else text


def _snippet(label: Label, width: int) -> list[str]:
    span = label.span
    line, first, cells = span.source.shown(span.line, span.column, span.line_end)
    number = f"{span.line:>{width}}" if span.source.is_numbered else " " * width
    said = f" {label.text}" if label.text else ""
    return [f"  --> {span}", f" {number} | {line}", f" {' ' * width} | {' ' * first}{'^' * cells}{said}"]


def _place(label: Label) -> dict[str, Any]:
    span = label.span
    is_file = span.source.is_numbered
    return {
        "place": str(span),
        "layer": span.source.layer.value,
        "name": span.source.name,
        "line": span.line if is_file else None,
        "column": span.column if is_file else None,
        "end_column": span.line_end if is_file else None,
        "text": label.text,
    }


def in_order(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Sort by place: texts in the order they were read, then lines. Findings without a place are last."""
    texts: dict[int, int] = {}

    def key(diagnostic: Diagnostic) -> tuple[int, int, int]:
        if not diagnostic.labels:
            return (1 << 30, 0, 0)
        span = diagnostic.labels[0].span
        return (texts.setdefault(id(span.source), len(texts)), span.line, span.column)

    return sorted(diagnostics, key=key)


def first_findings(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Sort by place; if there are too many, only errors remain, and the last one gives the number of those left out."""
    found = in_order(diagnostics)
    if len(found) <= MAX_FINDINGS:
        return found
    shown = [diagnostic for diagnostic in found if diagnostic.is_error][:MAX_FINDINGS] or found[:MAX_FINDINGS]
    more = Diagnostic(
        code="C126",
        message=f"{len(found) - len(shown)} more findings are not shown",
        severity=shown[0].severity,
        exit_code=shown[0].exit_code,
    )
    return [*shown, more]


def as_json(diagnostics: Sequence[Diagnostic], **more: Any) -> str:
    """A JSON object with every finding and the entries of `more`."""
    return json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "valid": not any(diagnostic.is_error for diagnostic in diagnostics),
            **more,
            "diagnostics": [diagnostic.as_dict() for diagnostic in diagnostics],
        },
        indent=2,
    )


def show(diagnostics: Sequence[Diagnostic], output: OutputFormat = "text") -> str:
    """All findings in one of the three formats."""
    if output == "json":
        return as_json(diagnostics)
    if output == "github":
        return "\n".join(diagnostic.as_github() for diagnostic in diagnostics)
    return "\n\n".join(diagnostic.as_text() for diagnostic in diagnostics)
