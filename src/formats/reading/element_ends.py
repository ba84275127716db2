"""Finds where a value of an element ends: at a marker that is followed by what can follow it in this format.

The text of a value may contain any of the markers, and a model may leave the end of a value out, or write it wrongly:
the next marker of the call's structure ends it too. `excluded` is the same for a grammar.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cached_property

from ..format import CallMarkers, XmlCall
from .source import markers_pattern, what_follows

_MAX_KEY = 128


class ElementEnds:
    """The ends of the values of one call. keys: the parameters of its tool; None if they are not known."""

    def __init__(self, calls: CallMarkers, style: XmlCall, keys: Collection[str] | None) -> None:
        end = calls.end or (calls.section[1] if calls.section else "")
        self.value_ends = frozenset({style.value_end, *_malformed(style.value_end)})
        self._style = style
        self._keys = keys
        self._needs_line = keys is None or bool(style.pad)  # before an element that ends the value before it
        self._call_ends = frozenset({style.end, end} - {""})
        self._after_value = frozenset({style.key_begin} | self._call_ends)
        section_end = calls.section[1] if calls.section else ""
        begins = {calls.begin, style.name_begin} - {""} or {section_end or end}
        self._after_call = frozenset(({end, section_end} - {style.end, ""}) | begins)
        self.markers = self.value_ends | self._call_ends | {style.key_begin}
        self.pattern = markers_pattern(self.markers)

    def fits(self, marker: str, text: str, at: int, is_line_start: bool, is_closed: bool) -> bool | None:
        """Whether the marker, which ends at this place of the text, ends a value. None: that is not known yet."""
        if marker in self.value_ends:
            return what_follows(text, at, self._after_value, is_closed)
        if marker in self._call_ends:
            return what_follows(text, at, self._after_call, is_closed)
        if self._needs_line and not is_line_start:
            return False
        return self._is_key(text, at, is_closed)

    def _is_key(self, text: str, at: int, is_closed: bool) -> bool | None:
        """Whether the name of a parameter follows, as at the beginning of an element."""
        end = text.find(self._style.key_end, at, at + _MAX_KEY)
        if end >= 0:
            key = text[at:end].strip()
            return key in self._keys if self._keys is not None else bool(key) and not set(key) & set("<>\n")
        rest = text[at:]
        if len(rest) >= _MAX_KEY or "\n" in rest.strip():
            return False
        if self._keys is not None and not any(
            (key + self._style.key_end).startswith(rest.lstrip()) for key in self._keys
        ):
            return False
        return True if is_closed else None

    @cached_property
    def excluded(self) -> str:
        """A regular expression of texts that end with what ends a value, beside its own marker."""

        def any_of(texts: Collection[str]) -> str:
            return "(" + "|".join(map(re.escape, sorted(texts))) + ")"

        key = any_of(self._keys) if self._keys else r"[^<>\n]{1,128}"
        before = r"((?s:.*)\n)?" if self._needs_line else "(?s:.*)"
        ends = rf"{any_of(self._call_ends)}\s*{any_of(self._after_call)}"
        if others := self.value_ends - {self._style.value_end}:
            ends += rf"|{any_of(others)}\s*{any_of(self._after_value)}"
        begin, end = re.escape(self._style.key_begin), re.escape(self._style.key_end)
        return rf"(?s:.*)({ends})|{before}{begin}\s*{key}\s*{end}"


def _malformed(end: str) -> tuple[str, ...]:
    """Ways in which models write an end tag wrongly."""
    if not (end.startswith("</") and end.endswith(">")):
        return ()
    return tuple(end[:-1] + rest for rest in ("/>", " >", "\n"))
