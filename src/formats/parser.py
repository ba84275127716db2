"""The parser of answers: text as it is generated, in pieces of any size, to events.

Every character is looked at a limited number of times. What only resembles a marker or a call is text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .events import Content, Event, Reasoning
from .format import CallMarkers, Format
from .reading.json_call import read_json_calls
from .reading.sink import JsonSchema, Sink
from .reading.source import Reading, Source, markers_pattern, skip_space, take

Kind = type[Content] | type[Reasoning]


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
        self._reading = _read_answer(self._source, format, calls, self._sink, starts_in_reasoning)
        next(self._reading)

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
    call_begins = {calls.begin, calls.section[0] if calls.section else ""} - {""} if calls else set()
    call_ends = {calls.end, calls.section[1] if calls.section else ""} - {""} if calls else set()
    in_reasoning = markers_pattern(frozenset({begin_reasoning, end_reasoning, *call_begins} - {""}))
    in_content = markers_pattern(frozenset({begin_reasoning, *call_begins} - {""}))
    after_calls = markers_pattern(frozenset({begin_reasoning, *call_begins, *call_ends} - {""}))
    markers = {begin_reasoning, end_reasoning, *call_begins, *call_ends} - {""}

    kind: Kind = Reasoning if starts_in_reasoning else Content
    pattern = in_reasoning if starts_in_reasoning else in_content
    if starts_in_reasoning:
        sink.marker()
    while True:
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
            yield from _read_calls(source, calls, marker, sink)
            if text := source.kept():
                sink.text(kind if sink.num_calls == num_calls else Content, text)
            if sink.num_calls > num_calls:
                kind, pattern = Content, after_calls
            continue
        source.at += len(marker)
        if marker == end_reasoning and kind is Reasoning:
            kind, pattern = Content, in_content
            sink.marker()
        elif marker == begin_reasoning and not sink.has_text:
            kind, pattern = Reasoning, in_reasoning
            sink.marker()
        elif marker in call_ends:
            sink.marker()
        else:
            sink.text(kind, marker)
    sink.flush()


def _read_calls(source: Source, calls: CallMarkers, marker: str, sink: Sink) -> Reading[None]:
    """Read the calls that a marker begins. What remains kept by the source is text."""
    source.at += len(marker)
    if calls.section and marker == calls.section[0] and calls.begin:
        yield from skip_space(source)
        if not (yield from take(source, calls.begin)):
            return
    yield from read_json_calls(source, calls.style, calls.end, sink)
