"""Reads an answer of a format with markers: text, reasoning and calls, in any order.

What comes in is the text of the answer. What goes out, to the sink, is its events. For Hermes with reasoning:

    <think>Oslo?</think>I look it up.<tool_call>{"name": "f", "arguments": {}}</tool_call>
    Reasoning("Oslo?"), Content("I look it up."), CallBegin(name="f"), CallArguments("{}"), CallEnd

A call within the reasoning is a draft: its events are held until it is clear whether the text was a call or reasoning.
What only resembles a marker or a call is text.
"""

from __future__ import annotations

from ..events import Content, Reasoning
from ..format import CallMarkers, Format, Pythonic
from .calls import may_begin_call, read_calls, read_style
from .markers import Kind, Markers, own_begin
from .sink import Sink
from .source import Reading, Source


class AnswerReader:
    def __init__(
        self, source: Source, format: Format, calls: CallMarkers | None, sink: Sink, *, starts_in_reasoning: bool
    ) -> None:
        """calls: None leaves calls in the text."""
        self._source = source
        self._calls = calls
        self._sink = sink
        self._markers = Markers(format, calls, reads_bare=bool(sink.tools))
        self._kind: Kind = Reasoning if starts_in_reasoning else Content  # of the text that is read
        self._is_data = False  # the content is JSON, but not a call: calls within it are data
        self._num_before = 0  # calls before the section of calls that is read
        self._noise: list[str] | None = None  # text between the calls of a section, while one is open
        if starts_in_reasoning:
            sink.marker()
            sink.in_reasoning = True

    def read(self) -> Reading[None]:
        source, markers = self._source, self._markers
        while True:
            match = markers.patterns[self._kind].search(source.text, source.at)
            stop = match.start() if match else len(source.text)
            if stop > source.at:
                self._write(source.text[source.at : stop])
                source.at = stop
            marker = match.group() if match else ""  # or the beginning of one, at the end of the text
            is_whole = marker in markers.all
            is_decided = source.is_closed or (is_whole and not markers.may_be_longer(marker, source.text[source.at :]))
            if not is_decided:
                yield
            elif is_whole:
                if not ((yield from self._read_calls(marker)) or (yield from self._read_bare_call(marker))):
                    self._take(marker)
            elif self._has_ended(marker):
                break
        self._sink.flush()

    def _write(self, text: str) -> None:
        if not text:
            return
        if self._noise is None:
            self._sink.text(self._kind, text)
        else:
            self._noise.append(text)

    def _write_kept(self, text: str) -> None:
        """Write what turned out not to be a call, unless it is one that the end of the answer cuts."""
        if self._source.is_at_end and self._source.hides_rest:
            self._source.at = len(self._source.text)
        else:
            self._write(text)

    def _write_after_calls(self, text: str) -> None:
        """Write what was kept after calls, unless it only separates them, or the next one is cut."""
        is_separator = text.strip() in (",", ";")
        self._write_kept("" if is_separator else text)

    def _has_ended(self, rest: str) -> bool:
        """Write what was held back. False if text is to be read again. rest: the beginning of a marker at the end."""
        source = self._source
        source.at = len(source.text)
        if not (source.must_call or (source.is_cut and len(rest) > 1)):
            self._write(rest)
        if self._sink.is_draft and self._returns_draft():
            return False
        if self._noise and not source.hides_rest:
            self._sink.text(Content, "".join(self._noise))  # the section has no end: this is the text after it
        return True

    def _returns_draft(self) -> bool:
        """End the draft of a call. True if it was reasoning: then the text after the reasoning is read again."""
        source, sink, end_reasoning = self._source, self._sink, self._markers.end_reasoning
        text = source.end_draft()
        if end_reasoning not in text or sink.drafts_complete_calls():
            sink.release_draft()
            return False
        sink.cancel_draft()  # the call was not ended before the reasoning was
        reasoning, end, rest = text.partition(end_reasoning)
        sink.text(Reasoning, reasoning)
        self._kind, self._noise = Reasoning, None
        source.return_text(end + rest)
        return True

    def _read_calls(self, marker: str) -> Reading[bool]:
        """Read the calls that a marker begins, or its text if there are none. False: it cannot begin calls here."""
        source, sink, markers = self._source, self._sink, self._markers
        way = markers.ways.get(marker)
        if way is None or sink.prose.is_code:
            return False
        if marker == own_begin(way) and not sink.prose.is_line_start:
            return False
        begins_draft = self._kind is Reasoning and bool(markers.end_reasoning)
        if begins_draft:
            source.begin_draft()
            sink.begin_draft()
        num_calls = sink.num_calls
        source.keep()
        yield from read_calls(source, way, marker, sink, is_first=num_calls == self._num_before)
        text = source.kept()
        if sink.num_calls > num_calls:
            self._kind = Content
            sink.marker()
            if way.section and (marker == way.section[0] or self._noise is not None):
                self._noise = []
            self._write_after_calls(text)
            return True
        if begins_draft:
            source.end_draft()
            sink.release_draft()
        self._write_kept(text)
        return True

    def _read_bare_call(self, marker: str) -> Reading[bool]:
        """Read a call that no marker announces. False: there is none, and the bracket is text."""
        source, sink, calls = self._source, self._sink, self._calls
        if calls is None or marker not in self._markers.bare:
            return False
        is_first = not sink.has_text and not sink.num_calls
        if self._kind is Reasoning or sink.is_draft or self._is_data or sink.prose.is_code:
            return False
        if not is_first and isinstance(calls.style, Pythonic) and not sink.prose.is_line_start:
            return False
        num_calls = sink.num_calls
        source.keep()
        yield from read_style(source, calls, sink, is_bare=True, is_first=is_first)
        if sink.num_calls > num_calls:
            text = source.kept()
            sink.marker()
            self._write_after_calls(text)
            return True
        is_at_end = source.is_at_end
        source.put_back()  # it may contain markers
        if is_at_end and (source.must_call or (source.is_cut and may_begin_call(source.text, calls, sink))):
            source.at = len(source.text)
            return True
        self._is_data = is_first
        return False

    def _take(self, marker: str) -> None:
        """Take a marker that begins no calls: of reasoning, of the end of calls, or of the answer. Others are text."""
        sink, markers = self._sink, self._markers
        self._source.at += len(marker)
        is_content = self._kind is Content
        if marker == markers.end_reasoning and (not is_content or sink.is_draft):
            self._end_reasoning(marker)
        elif marker == markers.begin_reasoning and not sink.has_text and not sink.is_draft:
            self._kind, self._noise = Reasoning, None
            sink.marker()
        elif is_content and marker == markers.end_reasoning and sink.prose.is_line_start:
            if not sink.has_text:  # else the line breaks around it belong to the text
                sink.marker()
        elif is_content and ((marker in markers.call_ends and sink.num_calls) or marker in markers.answer):
            sink.marker()
            if marker in markers.section_ends:
                self._num_before, self._noise = sink.num_calls, None
        else:
            self._write(marker)
        sink.in_reasoning = self._kind is Reasoning

    def _end_reasoning(self, marker: str) -> None:
        if self._sink.is_draft:  # it was reasoning, and no call
            text = self._source.end_draft().removesuffix(marker)
            self._sink.cancel_draft()
            self._sink.text(Reasoning, text)
            self._noise = None
        self._kind = Content
        self._sink.marker()
