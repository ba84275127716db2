"""The parser of answers: text as it is generated, in pieces of any size, to events.

Every character is looked at a limited number of times. What only resembles a marker or a call is text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
_MAX_NOISE = 64  # characters before the first call of a section


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
    must_call: bool = False,
    new_id: Callable[[], str] | None = None,
) -> Parser:
    """A parser of one answer. The arguments are AnswerParser's."""
    if format.parser is not None:
        return format.parser(  # type: ignore[no-any-return]
            format, tools=tools or {}, starts_in_reasoning=starts_in_reasoning, reads_calls=reads_calls, new_id=new_id
        )
    return AnswerParser(
        format,
        tools=tools,
        starts_in_reasoning=starts_in_reasoning,
        reads_calls=reads_calls,
        must_call=must_call,
        new_id=new_id,
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
        must_call: bool = False,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        """
        tools: the schema of the arguments of each tool, by name.
        reads_calls: False leaves calls in the text, as when a request has no tools.
        must_call: the answer is calls and no text: a call that is cut before its name is not text.
        new_id: makes the ids of calls whose format has no rule for them.
        """
        self._source = Source()
        self._source.must_call = must_call
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
            reader = _AnswerReader(self._source, format, calls, self._sink, starts_in_reasoning=starts_in_reasoning)
            self._reading = reader.read()
        next(self._reading)

    @property
    def in_reasoning(self) -> bool:
        """Whether the text that was fed last ends within the reasoning."""
        return self._sink.in_reasoning or self._sink.is_draft

    @property
    def held(self) -> Sequence[str]:
        """White space after the content, in pieces: it is content unless a marker follows."""
        return self._sink.held_content

    def feed(self, text: str) -> list[Event]:
        """The events that are certain with this text. It may be split anywhere."""
        if text:
            self._source.push(text)
            next(self._reading)
        return self._sink.take()

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """The answer has ended: events of text that was held back, and the ends of what is open.

        is_cut: a limit ended it: the beginning of a marker or of a call is not text.
        """
        self._source.is_closed = True
        self._source.is_cut = is_cut
        for _ in self._reading:
            raise AssertionError("a reader waits for text after the end of the answer")
        return self._sink.take()


class _Markers:
    """The markers of a format, by what they do."""

    def __init__(self, format: Format, calls: CallMarkers | None, *, reads_bare: bool) -> None:
        reasoning = format.reasoning
        self.begin_reasoning, self.end_reasoning = (reasoning.begin, reasoning.end) if reasoning else ("", "")
        self.ways: dict[str, CallMarkers] = {}  # how calls are written that begin with a marker
        for way in (calls, *calls.others) if calls else ():
            section = way.section[0] if way.section else ""
            for marker in (way.begin, section, _bare_marker(way), *(begin for begin, _ in way.other_markers)):
                if marker:
                    self.ways.setdefault(marker, way)
        bare = calls.bare if calls and reads_bare else ""
        # an array of calls, where one is an object, or the other way round
        self.bare = frozenset("{[" if bare and calls and isinstance(calls.style, JsonCall) else bare)
        ways = (calls, *calls.others) if calls else ()
        self.section_ends = {way.section[1] for way in ways if way.section}
        self.call_ends = ({way.end for way in ways} | self.section_ends) - {""}
        self.answer = frozenset(format.answer)
        of_reasoning = {self.begin_reasoning, self.end_reasoning, *self.ways} - {""}
        self.all = of_reasoning | self.call_ends | self.answer | self.bare
        self.in_reasoning = markers_pattern(frozenset(of_reasoning))
        self.in_content = markers_pattern(frozenset(self.all))
        self.longer = {  # the markers that begin with one
            marker: found
            for marker in self.all
            if (found := [each for each in self.all if each != marker and each.startswith(marker)])
        }

    def may_be_longer(self, text: str, marker: str) -> bool:
        """Whether the text, which begins with a marker, can be the beginning of another one."""
        return any(each.startswith(text) for each in self.longer[marker])


class _AnswerReader:
    """Reads an answer of a format with markers: text, reasoning and calls, in any order."""

    def __init__(
        self, source: Source, format: Format, calls: CallMarkers | None, sink: Sink, *, starts_in_reasoning: bool
    ) -> None:
        self._source, self._calls, self._sink = source, calls, sink
        self._markers = _Markers(format, calls, reads_bare=bool(sink.tools))
        self._kind: Kind = Reasoning if starts_in_reasoning else Content
        if starts_in_reasoning:
            sink.marker()
            sink.in_reasoning = True
        self._is_data = False  # the content is JSON, but not a call: calls within it are data
        self._num_before = 0  # calls before the section of calls that is read
        self._noise: list[str] | None = None  # text between the calls of a section, while one is open

    def read(self) -> Reading[None]:
        source, markers = self._source, self._markers
        while True:
            pattern = markers.in_reasoning if self._kind is Reasoning else markers.in_content
            match = pattern.search(source.text, source.at)
            stop = match.start() if match else len(source.text)
            if stop > source.at:
                self._write(source.text[source.at : stop])
                source.at = stop
            marker = match.group() if match else ""
            is_whole = marker in markers.all
            if not source.is_closed and (
                not is_whole or (marker in markers.longer and markers.may_be_longer(source.text[source.at :], marker))
            ):
                yield
            elif not is_whole:  # the text has ended, perhaps within a marker
                if self._has_ended(marker):
                    break
            elif not ((yield from self._reads_calls(marker)) or (yield from self._reads_bare_call(marker))):
                source.at += len(marker)
                self._take(marker)
                self._sink.in_reasoning = self._kind is Reasoning
        self._sink.flush()

    def _write(self, text: str) -> None:
        if not text:
            return
        if self._noise is None:
            self._sink.text(self._kind, text)
        else:
            self._noise.append(text)

    def _write_rest(self, text: str) -> None:
        """Write what was kept after calls, unless it only separates them, or the next one is cut."""
        if self._source.is_at_end and self._source.hides_rest:
            self._source.at = len(self._source.text)
        elif text.strip() not in (",", ";"):
            self._write(text)

    def _has_ended(self, marker: str) -> bool:
        """Write what was held back; marker: the beginning of one at the end. False if text is to be read again."""
        source, sink, end_reasoning = self._source, self._sink, self._markers.end_reasoning
        source.at = len(source.text)
        if not (source.must_call or (source.is_cut and len(marker) > 1)):
            self._write(marker)
        if sink.is_draft:
            text = source.end_draft()
            if end_reasoning in text and not sink.drafts_complete_calls():
                # the call was not ended before the reasoning was
                sink.cancel_draft()
                reasoning, end, rest = text.partition(end_reasoning)
                sink.text(Reasoning, reasoning)
                self._kind, self._noise = Reasoning, None
                source.return_text(end + rest)
                return False
            sink.release_draft()
        if self._noise and not source.hides_rest:
            sink.text(Content, "".join(self._noise))  # the section has no end: this is the text after it
        return True

    def _reads_calls(self, marker: str) -> Reading[bool]:
        """Read the calls that a marker begins, or its text if there are none. False: it cannot begin calls here."""
        source, sink, markers = self._source, self._sink, self._markers
        if (way := markers.ways.get(marker)) is None or sink.prose.is_code:
            return False
        if marker == _bare_marker(way) and not sink.prose.is_line_start:
            return False
        begins_draft = self._kind is Reasoning and bool(markers.end_reasoning)
        if begins_draft:
            source.begin_draft()
            sink.begin_draft()
        num_calls = sink.num_calls
        source.keep()
        yield from _read_calls(source, way, marker, sink, is_first=num_calls == self._num_before)
        text = source.kept()
        if sink.num_calls > num_calls:
            self._kind = Content
            sink.marker()
            if way.section and (marker == way.section[0] or self._noise is not None):
                self._noise = []
            self._write_rest(text)
            return True
        if begins_draft:
            source.end_draft()
            sink.release_draft()
        if source.is_at_end and source.hides_rest:
            source.at = len(source.text)
        else:
            self._write(text)
        return True

    def _reads_bare_call(self, marker: str) -> Reading[bool]:
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
        yield from _read_style(source, calls, sink, is_bare=True, is_first=is_first)
        if sink.num_calls > num_calls:
            text = source.kept()
            sink.marker()
            self._write_rest(text)
            return True
        is_at_end = source.is_at_end
        source.put_back()  # it may contain markers
        if is_at_end and (source.must_call or (source.is_cut and _begins_call(source.text, calls, sink))):
            source.at = len(source.text)
            return True
        self._is_data = is_first
        return False

    def _take(self, marker: str) -> None:
        """Apply a marker that begins no calls: of reasoning, of the end of calls, or of the answer. Others are text."""
        sink, markers = self._sink, self._markers
        is_content = self._kind is Content
        if marker == markers.end_reasoning and (not is_content or sink.is_draft):
            if sink.is_draft:
                text = self._source.end_draft()[: -len(marker)]
                sink.cancel_draft()
                sink.text(Reasoning, text)
                self._noise = None
            self._kind = Content
            sink.marker()
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


def _begins_call(text: str, calls: CallMarkers, sink: Sink) -> bool:
    """Whether an answer without markers can be the beginning of a call, as far as it goes."""
    begins = [f"{name}(" for name in sink.tools]
    if isinstance(calls.style, JsonCall):
        begins = [f'{{"{calls.style.name_key}"', '{"type"']
    text = text.lstrip(" \n[")
    return any(begin.startswith(text) or text.startswith(begin) for begin in begins)


def _bare_marker(calls: CallMarkers) -> str:
    """The beginning of a call whose first marker was left out, as models do."""
    match calls.style:
        case XmlCall() as style:
            return style.name_begin
        case BareKeys() as style:
            return style.prefix
    return ""


def _read_calls(source: Source, calls: CallMarkers, marker: str, sink: Sink, *, is_first: bool) -> Reading[None]:
    """Read the calls that a marker begins. What remains kept by the source is text.

    is_first: no call comes before it, or all of them are in a section that has ended.
    """
    bare = _bare_marker(calls)
    if marker == bare:  # the reader takes it
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
    if calls.section and marker == calls.section[0] and (begin := calls.begin or bare):
        if not (yield from _skip_noise(source, begin, calls.section[1])):
            return
        if calls.begin and not (yield from take(source, calls.begin)):
            return
    yield from _read_style(source, calls, sink)


def _skip_noise(source: Source, begin: str, end: str) -> Reading[bool]:
    """Take a limited number of characters before the first call of a section. False and nothing, if no call follows."""
    while True:
        place = source.text.find(begin, source.at, source.at + _MAX_NOISE + len(begin))
        if place >= 0:
            if end in source.text[source.at : place]:
                return False
            source.at = place
            return True
        is_near = len(source.text) - source.at < _MAX_NOISE + len(begin)
        if source.is_closed or not is_near:
            source.ends_within = source.ends_within or is_near
            return False
        yield


def _read_style(
    source: Source, calls: CallMarkers, sink: Sink, *, is_bare: bool = False, is_first: bool = True
) -> Reading[None]:
    end = calls.end or (calls.section[1] if calls.section else "")
    match calls.style:
        case JsonCall() as style:
            yield from read_json_calls(source, style, end, sink, is_bare=is_bare)
        case NamedJson() as style:
            yield from read_named_json(source, style, end, calls.ids, sink)
        case XmlCall() as style:
            yield from read_xml_call(source, style, calls, end, sink, is_bare=is_bare)
        case Pythonic() as style:
            yield from read_pythonic(source, style, end, sink, is_bare=is_bare, is_first=is_first)
        case BareKeys() as style:
            yield from read_bare_keys(source, style, calls, sink, is_bare=is_bare)
        case Harmony():
            raise AssertionError("the whole answer is harmony: read_harmony")
