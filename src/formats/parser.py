"""The parser of answers: text as it is generated, in pieces of any size, to events.

    parser = open_parser(format, tools=tools, starts_in_reasoning=False)
    events = parser.feed("It is 3 ") + parser.feed("degrees.") + parser.finish()

The pieces may be split anywhere: the events differ only in how text is divided among them. Every character is looked at
a limited number of times. reading/answer.py reads formats with markers, reading/harmony.py reads Harmony.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from .events import Event
from .format import Format, Harmony
from .reading.answer import AnswerReader
from .reading.harmony import read_harmony
from .reading.sink import JsonSchema, Sink
from .reading.source import Source


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
            reader = AnswerReader(self._source, format, calls, self._sink, starts_in_reasoning=starts_in_reasoning)
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
