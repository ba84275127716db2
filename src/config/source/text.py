"""Text that people wrote - a file, a variable, a flag - and places in it.

Lines are shown in messages, so a text knows which of its parts are secrets and shows none of them.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

from ..origin import Layer, Origin
from ..schema.types import REDACTED

_MAX_SHOWN = 160  # characters of one line
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@dataclass(eq=False)
class SourceText:
    """One text. `folder` is what relative paths in it are relative to."""

    layer: Layer
    name: str  # file as given, variable, flag or preset
    lines: list[str] = field(repr=False)  # may hold secrets
    folder: Path = field(default_factory=Path)
    secret_names: frozenset[str] = frozenset()  # keys whose values are secrets wherever they stand in the text
    secrets: list[tuple[int, int, int]] = field(default_factory=list)  # line, first column, column after the last

    @property
    def place(self) -> str:
        """What stands after the arrow of a message."""
        match self.layer:
            case Layer.FILE:
                return self.name
            case Layer.ENVIRONMENT:
                return f"environment variable {self.name}"
            case Layer.ARGUMENT:
                return f"argument {self.name}"
            case Layer.PRESET:
                return f"preset {self.name}"
            case _:
                return "command line"

    @property
    def is_numbered(self) -> bool:
        return self.layer in (Layer.FILE, Layer.PRESET)

    def hide(self, span: Span) -> None:
        """Never show what stands in `span`."""
        self.secrets.append((span.line, span.column, span.line_end))
        for line in range(span.line + 1, span.end_line + 1):
            self.secrets.append((line, 1, len(self._line(line)) + 1))

    def _line(self, number: int) -> str:
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def shown(self, number: int, column: int, end_column: int) -> tuple[str, int, int]:
        """A line as messages show it, with the cells of [column, end_column) in it: text, first cell, cells.

        Secrets become asterisks, control characters blanks; a long line is cut around the place.
        """
        line = self._line(number)
        hidden = sorted([(start, end) for at, start, end in self.secrets if at == number] + self._named(number))
        shown: list[str] = []
        first = last = None
        position = 1
        while position <= len(line) + 1:
            if position == column:
                first = _cells(shown)
            if position == end_column:
                last = _cells(shown)
            if position > len(line):
                break
            if hidden and hidden[0][0] <= position:
                _, end = hidden.pop(0)
                if position < end:
                    shown.append(REDACTED)
                    if position < column < end:
                        first = _cells(shown)
                    if position < end_column <= end:
                        last = _cells(shown)
                    position = end
                continue
            shown.append(_CONTROL.sub(" ", line[position - 1]))
            position += 1
        text = "".join(shown)
        first = _cells([text]) if first is None else first
        last = _cells([text]) if last is None else last
        if len(text) > _MAX_SHOWN:
            cut = max(0, min(first - 40, len(text) - _MAX_SHOWN))
            text = ("..." if cut else "") + text[cut : cut + _MAX_SHOWN] + "..."
            first, last = first - cut + 3 * bool(cut), min(last - cut + 3 * bool(cut), _MAX_SHOWN)
        return text.rstrip(), first, max(1, last - first)

    def redacted(self) -> str:
        """The whole text with its secrets as asterisks."""
        return "\n".join(self._redacted(number) for number in range(1, len(self.lines) + 1))

    def _redacted(self, number: int) -> str:
        line = self._line(number)
        hidden = [(start, end) for at, start, end in self.secrets if at == number] + self._named(number)
        for start, end in sorted(hidden, reverse=True):
            line = line[: start - 1] + REDACTED + line[max(start, end) - 1 :]
        return line

    def _named(self, number: int) -> list[tuple[int, int]]:
        """Secrets found by their key's name, for text that could not be read as YAML."""
        if not self.secret_names:
            return []
        names = "|".join(sorted(map(re.escape, self.secret_names)))
        line = self._line(number)
        value = re.search(rf"""\b(?:{names})["']?\s*:\s*(\S.*)$""", line)
        if value is None and re.match(r"\s*-", line):
            above = number - 1
            while above > 0 and re.match(r"\s*(-|#|$)", self._line(above)):
                above -= 1
            if re.search(rf"""\b(?:{names})["']?\s*:\s*$""", self._line(above)):
                value = re.match(r"\s*-\s*(\S.*)$", line)
        return [(value.start(1) + 1, value.end(1) + 1)] if value else []


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text; lines and columns count from 1, `end_column` is the one after the last."""

    source: SourceText
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.source.place}:{self.line}:{self.column}" if self.source.is_numbered else self.source.place

    @property
    def line_end(self) -> int:
        """Column after the last one on the first line."""
        return self.end_column if self.end_line == self.line else len(self.source.lines[self.line - 1]) + 1

    def origin(self, reason: str = "") -> Origin:
        source = self.source
        return Origin(
            layer=source.layer,
            name=source.name,
            line=self.line if source.is_numbered else None,
            column=self.column,
            width=max(1, self.line_end - self.column),
            reason=reason,
        )


def _cells(parts: list[str]) -> int:
    """Cells of a terminal that a text takes: East Asian wide characters take two."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for part in parts
        for char in part
    )
