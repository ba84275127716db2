"""The markers of a format by what they do, so that the reader of an answer can ask about one that it finds.

For Hermes with reasoning, `<think>` is `begin_reasoning`, `<tool_call>` is a key of `ways`, whose value says how the
call after it is written, and `</tool_call>` is one of `call_ends`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..events import Content, Reasoning
from ..format import BareKeys, CallMarkers, Format, JsonCall, XmlCall
from .source import markers_pattern

Kind = type[Content] | type[Reasoning]


class Markers:
    """The markers of one format.

    begin_reasoning, end_reasoning: empty if the format has no reasoning.
    ways: how calls are written that begin with a marker.
    bare: characters at which a call may begin that no marker announces.
    call_ends: markers after a call, or after a section of calls; section_ends: those after a section.
    answer: markers around the content.
    patterns: each finds the next marker within reasoning or content, or the beginning of one at the end of the text.
    """

    def __init__(self, format: Format, calls: CallMarkers | None, *, reads_bare: bool) -> None:
        """calls: None leaves calls in the text. reads_bare: there are tools, without which no bare call is one."""
        ways = (calls, *calls.others) if calls else ()
        reasoning = format.reasoning
        self.begin_reasoning = reasoning.begin if reasoning else ""
        self.end_reasoning = reasoning.end if reasoning else ""
        self.ways: dict[str, CallMarkers] = {}
        for way in ways:
            for marker in _begins(way):
                self.ways.setdefault(marker, way)
        self.bare = _bare_characters(calls) if calls and reads_bare else frozenset()
        self.section_ends = {way.section[1] for way in ways if way.section}
        self.call_ends = ({way.end for way in ways} | self.section_ends) - {""}
        self.answer = frozenset(format.answer)
        in_reasoning = {self.begin_reasoning, self.end_reasoning, *self.ways} - {""}
        self.all = in_reasoning | self.call_ends | self.answer | self.bare
        self.patterns: dict[Kind, re.Pattern[str]] = {
            Reasoning: markers_pattern(frozenset(in_reasoning)),
            Content: markers_pattern(frozenset(self.all)),
        }
        self._longer: dict[str, list[str]] = {}  # the markers that begin with one, where there are some
        for marker in self.all:
            longer = [other for other in self.all if other != marker and other.startswith(marker)]
            if longer:
                self._longer[marker] = longer

    def may_be_longer(self, marker: str, text: str) -> bool:
        """Whether the text, which begins with the marker, can be the beginning of another one."""
        return marker in self._longer and any(other.startswith(text) for other in self._longer[marker])


def _begins(way: CallMarkers) -> Iterator[str]:
    """The markers with which calls begin that are written in this way."""
    section = way.section[0] if way.section else ""
    others = (begin for begin, _ in way.other_markers)
    return (marker for marker in (way.begin, section, own_begin(way), *others) if marker)


def own_begin(calls: CallMarkers) -> str:
    """What a call itself begins with, by its style. Models leave the marker before it out."""
    match calls.style:
        case XmlCall() as style:
            return style.name_begin
        case BareKeys() as style:
            return style.prefix
    return ""


def _bare_characters(calls: CallMarkers) -> frozenset[str]:
    if calls.bare and isinstance(calls.style, JsonCall):
        return frozenset("{[")  # models write an array of calls where one is an object, or the other way round
    return frozenset(calls.bare)
