"""Text that people wrote - a file, a variable, a flag - and places in it.

Lines are shown in messages, so a text knows which of its parts are secrets and shows none of them.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

from .origin import Layer, Origin
from .schema.types import REDACTED

_MAX_SHOWN = 160  # characters of one line
_MAX_SAID = 600  # characters of one part of a message
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """A text as part of a message: nothing that moves a terminal's cursor or turns its writing, no endless names."""
    if len(text) > _MAX_SAID:
        text = f"{text[: _MAX_SAID - 40]}...{text[-40:]}"
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@dataclass(eq=False)
class SourceText:
    """One text. `folder` is what relative paths in it are relative to."""

    layer: Layer
    name: str  # file as given, variable, flag or preset
    lines: list[str] = field(repr=False)  # may hold secrets
    folder: Path = field(default_factory=Path)
    hidden: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # line: [first column, end)

    @property
    def place(self) -> str:
        """The name of the place after the arrow of a message."""
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
        """Hide the text in `span`."""
        for line in range(span.line, span.end_line + 1):
            start = span.column if line == span.line else 1
            end = span.end_column if line == span.end_line else len(self._line(line)) + 1
            if start < end:
                self.hidden.setdefault(line, []).append((start, end))

    def _line(self, number: int) -> str:
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def shown(self, number: int, column: int, end_column: int) -> tuple[str, int, int]:
        """A line as messages show it, with the cells of [column, end_column) in it: text, first cell, cells.

        Secrets become asterisks, control characters blanks; a long line is cut around the place.
        """
        line = self._line(number)
        begin = max(1, column - _MAX_SHOWN)
        stop = min(len(line), column + 2 * _MAX_SHOWN)
        hidden = sorted(part for part in self.hidden.get(number, ()) if part[1] > begin and part[0] <= stop)
        shown: list[str] = []
        first = last = None
        position = begin
        while position <= stop + 1:
            if position == column:
                first = _cells(shown)
            if position == end_column:
                last = _cells(shown)
            if position > stop:
                break
            if hidden and hidden[0][0] <= position:
                _, end = hidden.pop(0)
                if position < end:
                    if position < column < end:
                        first = _cells(shown)
                    shown.append(REDACTED)
                    if position < end_column <= end:
                        last = _cells(shown)
                    position = end
                continue
            shown.append(_CONTROL.sub(" ", line[position - 1]))
            position += 1
        text = "".join(shown)
        first = _cells([text]) if first is None else first
        last = _cells([text]) if last is None else last
        if begin > 1 or len(text) > _MAX_SHOWN:
            cut = max(0, min(first - 40, len(text) - _MAX_SHOWN))
            before = "..." if begin > 1 or cut > 0 else ""
            after = "..." if stop < len(line) or cut + _MAX_SHOWN < len(text) else ""
            text = before + text[cut : cut + _MAX_SHOWN] + after
            first, last = first - cut + len(before), min(last - cut, _MAX_SHOWN) + len(before)
        return text.rstrip(), first, max(1, last - first)

    def redacted(self) -> str:
        """The whole text with its secrets as asterisks."""
        return "\n".join(self._redacted(number) for number in range(1, len(self.lines) + 1))

    def _redacted(self, number: int) -> str:
        line = self._line(number)
        parts: list[str] = []
        position = 1
        for start, end in sorted(self.hidden.get(number, ())):
            if end > position:
                parts.append(line[position - 1 : max(start, position) - 1])
                if start >= position:
                    parts.append(REDACTED)
                position = end
        return "".join(parts) + line[position - 1 :]


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text; lines and columns count from 1, `end_column` is the one after the last."""

    source: SourceText
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        place = printable(self.source.place)
        return f"{place}:{self.line}:{self.column}" if self.source.is_numbered else place

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
