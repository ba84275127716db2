"""The structure of an object or array that is written while it is read: brackets, commas, colons and white space.

What comes in is what a model wrote, one bracket, separator or item at a time. What goes out is a beginning of valid
JSON at each moment: what is missing is added, and what does not belong there is left out.

    read:    {"a" 1 "b": [2,)
    written: {"a": 1, "b": [2]}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Write = Callable[[str], None]
SPACE_OF_JSON = frozenset(" \t\n\r")

_CLOSING = {"{": "}", "[": "]", "(": ")"}
# What the innermost bracket needs next: `item` after the bracket and after a comma, `comma` after each item; in an
# object `colon` after a key and `value` after the colon.
_Needs = Literal["item", "colon", "value", "comma"]


class Structure:
    """Follows the structure of one object or array, and writes it. The caller writes the items between."""

    __slots__ = ("_closing", "_held_comma", "_needs", "_num_open", "_write", "is_complete")

    def __init__(self, write: Write) -> None:
        self.is_complete = False  # the outermost bracket was closed
        self._write = write
        self._closing: list[str] = []  # closing brackets of what is open, outermost first
        self._num_open = dict.fromkeys(_CLOSING.values(), 0)  # by closing bracket
        self._needs: _Needs = "item"
        self._held_comma: list[str] | None = None  # a comma and the space after it, until an item follows

    @property
    def in_object(self) -> bool:
        return bool(self._closing) and self._closing[-1] == "}"

    @property
    def wants_key(self) -> bool:
        return self.in_object and self._needs in ("item", "comma")

    def space(self, text: str) -> None:
        """Add white space, which becomes spaces where JSON does not have its characters."""
        text = text if SPACE_OF_JSON.issuperset(text) else " " * len(text)
        if self._held_comma is None:
            self._write(text)
        else:
            self._held_comma.append(text)

    def begin_item(self) -> bool:
        """Add what must precede a key or value, which the caller writes next. Returns whether it is a key."""
        is_key = self.wants_key
        self._write_separator()
        self._needs = "colon" if is_key else "comma"
        return is_key

    def open(self, bracket: str) -> None:
        """Add an opening bracket. Where a key must be, as in `{{"a": 1}}`, it is left out."""
        if self.wants_key:
            return
        self._write_separator()
        self._write("{" if bracket == "{" else "[")
        self._closing.append(_CLOSING[bracket])
        self._num_open[_CLOSING[bracket]] += 1
        self._needs = "item"

    def separator(self, character: str) -> None:
        """Add a comma or a colon. One that is not possible here is left out."""
        if character == ":":
            if self._needs == "colon":
                self._write(":")
                self._needs = "value"
        elif self._needs != "item":
            self._write_missing_value()
            self._held_comma = [","]
            self._needs = "item"

    def close(self, bracket: str) -> None:
        """Add a closing bracket, and those of what is open within. Nothing if no such bracket is open."""
        while self._num_open[bracket]:
            if self._close_innermost() == bracket:
                return

    def close_all(self) -> None:
        while self._closing:
            self._close_innermost()

    def _close_innermost(self) -> str:
        if self._held_comma is None:
            self._write_missing_value()
        else:  # no item followed: the space is kept, the comma is not
            self._write("".join(self._held_comma[1:]))
            self._held_comma = None
        bracket = self._closing.pop()
        self._num_open[bracket] -= 1
        self._write("}" if bracket == "}" else "]")
        self._needs = "comma"
        self.is_complete = not self._closing
        return bracket

    def _write_separator(self) -> None:
        if self._held_comma is not None:
            self._write("".join(self._held_comma))
            self._held_comma = None
        elif self._needs == "colon":
            self._write(": ")
        elif self._needs == "comma":
            self._write(",")

    def _write_missing_value(self) -> None:
        if self._needs == "colon":
            self._write(": null")
        elif self._needs == "value":
            self._write("null")
