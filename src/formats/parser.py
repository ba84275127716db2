"""The parser of answers: text as it is generated, in pieces of any size, to events.

Every character is looked at a limited number of times. What only resembles a marker or a call is text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from .events import Content, Event, Reasoning
from .format import BareKeys, CallMarkers, Format, Harmony, JsonCall, NamedJson, Pythonic, XmlCall
from .reading.bare_keys import read_bare_keys
from .reading.harmony import read_harmony
from .reading.json_call import read_json_calls
from .reading.named_json import read_named_json
from .reading.pythonic import read_pythonic
from .reading.sink import JsonSchema, Sink
from .reading.source import Reading, Source, markers_pattern, skip_space, take
from .reading.xml_call import read_xml_call

Kind = type[Content] | type[Reasoning]


class Parser(Protocol):
    """What reads one answer: AnswerParser, or a class of a user with the same arguments."""

    @property
    def in_reasoning(self) -> bool: ...

    def feed(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]: ...


def open_parser(
    format: Format,
    *,
    tools: Mapping[str, JsonSchema] | None = None,
    starts_in_reasoning: bool,
    reads_calls: bool = True,
    new_id: Callable[[], str] | None = None,
) -> Parser:
    """A parser of one answer. The arguments are those of AnswerParser."""
    kind: Callable[..., Parser] = format.parser or AnswerParser
    return kind(
        format, tools=tools or {}, starts_in_reasoning=starts_in_reasoning, reads_calls=reads_calls, new_id=new_id
    )


class AnswerParser:
    """Reads one answer. Feed it text with the format's special tokens kept, and finish it once."""

    def __init__(
        self,
        format: Format,
        *,
        tools: Mapping[str, JsonSchema] | None = None,
        starts_in_reasoning: bool,
        reads_calls: bool = True,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        """
        tools: the schema of the arguments of each tool, by name.
        reads_calls: False leaves calls in the text, as when a request has no tools.
        new_id: makes the ids of calls whose format has no rule for them.
        """
        self._source = Source()
        calls = format.calls if reads_calls else None
        self._sink = Sink(self._source, tools or {}, calls.ids if calls else "random", new_id)
        if format.calls and isinstance(format.calls.style, Harmony):
            self._reading = read_harmony(
                self._source,
                self._sink,
                reads_calls=reads_calls,
                reads_reasoning=format.reasoning is not None,
                starts_in_reasoning=starts_in_reasoning,
            )
        else:
            self._reading = _read_answer(self._source, format, calls, self._sink, starts_in_reasoning)
        next(self._reading)

    @property
    def in_reasoning(self) -> bool:
        """Whether the text that was fed last ends within the reasoning."""
        return self._sink.in_reasoning

    def feed(self, text: str) -> list[Event]:
        """The events that are certain with this text. It may be split anywhere."""
        if text:
            self._source.push(text)
            next(self._reading)
        return self._sink.take()

    def finish(self) -> list[Event]:
        """The answer has ended: events of text that was held back, and the ends of what is open."""
        self._source.is_closed = True
        for _ in self._reading:
            raise AssertionError("a reader waits for text after the end of the answer")
        return self._sink.take()


def _read_answer(
    source: Source, format: Format, calls: CallMarkers | None, sink: Sink, starts_in_reasoning: bool
) -> Reading[None]:
    reasoning = format.reasoning
    begin_reasoning, end_reasoning = (reasoning.begin, reasoning.end) if reasoning else ("", "")
    section = calls.section if calls and calls.section else ("", "")
    other_begins = {begin for begin, _ in calls.other_markers} if calls else set()
    call_begins = {calls.begin, section[0], _bare_marker(calls), *other_begins} - {""} if calls else set()
    call_ends = {calls.end, section[1]} - {""} if calls else set()
    answer = set(format.answer)
    in_reasoning = _pattern(begin_reasoning, end_reasoning, *call_begins)
    in_content = _pattern(begin_reasoning, *call_begins, *answer)
    after_calls = _pattern(begin_reasoning, *call_begins, *call_ends, *answer)
    markers = {begin_reasoning, end_reasoning, *call_begins, *call_ends, *answer} - {""}

    kind: Kind = Reasoning if starts_in_reasoning else Content
    pattern = in_reasoning if starts_in_reasoning else in_content
    if starts_in_reasoning:
        sink.marker()
        sink.in_reasoning = True
    may_be_bare = bool(calls and calls.bare and sink.tools)
    num_before = 0  # calls before the section of calls that is read
    while True:
        if may_be_bare and kind is Content:
            assert calls
            may_be_bare = False
            source.keep()
            if (yield from skip_space(source)) == calls.bare:
                yield from _read_style(source, calls, sink, is_bare=True)
            source.put_back()  # it may contain markers
            if sink.num_calls:
                pattern = after_calls
        match = pattern.search(source.text, source.at)
        if match is None:
            if source.at < len(source.text):
                sink.text(kind, source.text[source.at :])
                source.at = len(source.text)
            if source.is_closed:
                break
            yield
            continue
        if match.start() > source.at:
            sink.text(kind, source.text[source.at : match.start()])
            source.at = match.start()
        marker = match.group()
        if marker not in markers:  # the beginning of one, at the end of the text
            if source.is_closed:
                sink.text(kind, marker)
                break
            yield
            continue
        if calls and marker in call_begins:
            num_calls = sink.num_calls
            source.keep()
            yield from _read_calls(source, calls, marker, sink, is_first=num_calls == num_before)
            text = source.kept()
            if sink.num_calls > num_calls:
                kind, pattern = Content, after_calls
                sink.marker()
            if text:
                sink.text(kind, text)
            continue
        source.at += len(marker)
        if marker == end_reasoning and kind is Reasoning:
            kind, pattern = Content, in_content
            sink.marker()
        elif marker == begin_reasoning and not sink.has_text:
            kind, pattern = Reasoning, in_reasoning
            sink.marker()
        elif kind is Content and (marker in call_ends or marker in answer):
            sink.marker()
            if marker == section[1]:
                num_before = sink.num_calls
        else:
            sink.text(kind, marker)
        sink.in_reasoning = kind is Reasoning
    sink.flush()


def _pattern(*markers: str) -> re.Pattern[str]:
    return markers_pattern(frozenset(markers) - {""})


def _bare_marker(calls: CallMarkers) -> str:
    """The beginning of a call whose first marker was left out, as models do."""
    return calls.style.name_begin if isinstance(calls.style, XmlCall) else ""


def _read_calls(source: Source, calls: CallMarkers, marker: str, sink: Sink, *, is_first: bool) -> Reading[None]:
    """Read the calls that a marker begins. What remains kept by the source is text.

    is_first: no call comes before it, or all of them are in a section that has ended.
    """
    if marker == _bare_marker(calls):  # the reader takes it
        yield from _read_style(source, calls, sink, is_bare=is_first)  # later ones may be of a section
        return
    source.at += len(marker)
    for begin, end in calls.other_markers:
        if marker == begin:
            num_calls = sink.num_calls
            yield from _read_style(source, replace(calls, end=end), sink, is_bare=bool(calls.bare))
            if end and sink.num_calls > num_calls:
                yield from skip_space(source)
                if (yield from take(source, end)):
                    source.forget()
            return
    if calls.section and marker == calls.section[0] and calls.begin:
        yield from skip_space(source)
        if not (yield from take(source, calls.begin)):
            return
    yield from _read_style(source, calls, sink)


def _read_style(source: Source, calls: CallMarkers, sink: Sink, *, is_bare: bool = False) -> Reading[None]:
    end = calls.end or (calls.section[1] if calls.section else "")
    match calls.style:
        case JsonCall() as style:
            yield from read_json_calls(source, style, end, sink, is_bare=is_bare)
        case NamedJson() as style:
            yield from read_named_json(source, style, end, calls.ids, sink)
        case XmlCall() as style:
            yield from read_xml_call(source, style, end, sink, is_bare=is_bare)
        case Pythonic() as style:
            yield from read_pythonic(source, style, sink, is_bare=is_bare)
        case BareKeys() as style:
            yield from read_bare_keys(source, style, sink)
        case Harmony():
            raise AssertionError("the whole answer is harmony: read_harmony")
