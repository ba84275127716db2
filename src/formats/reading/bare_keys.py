"""Reads calls whose keys have no quotes, and whose strings are between quotes that no text contains.

What comes in is the text from the beginning of a call on. What goes out, to the sink, is the name of the tool and the
JSON of its arguments, while the text arrives:

    call:get_weather{city:<|"|>Oslo<|"|>,days:3}
    get_weather {"city": "Oslo", "days": 3}
"""

from __future__ import annotations

import re

from ..format import BareKeys, CallMarkers
from .json_structure import Structure
from .json_text import beginning
from .schema_types import ALL_TYPES, quoted
from .sink import Sink
from .source import (
    MAX_SPACE,
    Reading,
    Source,
    after_space,
    is_next,
    markers_pattern,
    pass_until,
    peek,
    skip_space,
    take,
    take_name,
    what_follows,
)
from .typed_value import typed_text

_KEY_END = re.compile(r"[:,{}\[\]]")
_QUOTED = re.compile(r"""(["'])(.+)\1""", re.DOTALL)  # models also write keys as in JSON
_SCALAR_END = re.compile(r"[,{}\[\]<\n)]")
_MAX_KEY = 128
_KEY = re.compile(rf"[^:,{{}}\[\]\n]{{1,{_MAX_KEY}}}")


def read_bare_keys(
    source: Source, style: BareKeys, calls: CallMarkers, sink: Sink, *, is_bare: bool = False
) -> Reading[None]:
    """Read one call. What is not a call remains kept by the source.

    A string ends at a quote that is followed by what can follow a value. Before the call's end, what is open is closed.
    is_bare: no marker says that this is a call: only tools of the request are called.
    """
    yield from skip_space(source)
    if not (yield from take(source, style.prefix)):
        yield from take(source, style.prefix[-1:])  # models leave the word before it out
    yield from skip_space(source)
    name = yield from take_name(source, {"{", "("})
    if name is None or (is_bare and name not in sink.tools):
        return
    sink.begin(name)
    yield from _ArgumentsReader(source, style.quote, calls, sink).read()
    sink.end()


class _ArgumentsReader:
    """Reads the object of the arguments."""

    def __init__(self, source: Source, quote: str, calls: CallMarkers, sink: Sink) -> None:
        self._source = source
        self._quote = quote
        self._calls = calls
        self._sink = sink
        self._structure = Structure(sink.write)
        self._string_ends = markers_pattern(frozenset({quote, calls.end} - {""}))

    def read(self) -> Reading[None]:
        """Pass the object on. Its bracket is next: a brace, or as some models write, another."""
        source, structure, end = self._source, self._structure, self._calls.end
        source.at += 1
        structure.open("{")
        while not structure.is_complete and (first := (yield from skip_space(source))):
            if first == end[:1] and (yield from is_next(source, end)):
                structure.close_all()
            elif first == self._quote[0] and (yield from take(source, self._quote)):
                if structure.begin_item():
                    yield from self._pass_quoted_key()
                elif not (yield from self._pass_string()):
                    return
            elif first in ",:}])" or first in "{[":
                source.at += 1
                self._add_sign(first)
            elif structure.begin_item():
                yield from self._pass_key()
            else:
                yield from self._pass_scalar()

    def _add_sign(self, sign: str) -> None:
        if sign in ",:":
            self._structure.separator(sign)
            self._structure.space(" ")
        elif sign in "}])":
            self._structure.close("}" if sign == ")" else sign)
        else:
            self._structure.open(sign)

    def _pass_quoted_key(self) -> Reading[None]:
        pieces: list[str] = []
        if (yield from pass_until(self._source, {self._quote}, pieces.append)):
            self._source.at += len(self._quote)
        self._sink.write(quoted("".join(pieces).strip()))

    def _pass_key(self) -> Reading[None]:
        text = yield from self._take_until(_KEY_END)
        self._sink.write(quoted(_QUOTED.sub(r"\2", text.strip())))

    def _pass_scalar(self) -> Reading[None]:
        """Pass on a number or a word. What is not JSON is a string whose quotes the model forgot."""
        text = yield from self._take_until(_SCALAR_END)
        is_complete = bool((yield from peek(self._source)))
        self._sink.write(typed_text(text.strip(), ALL_TYPES) if is_complete else beginning(text))

    def _take_until(self, ends: re.Pattern[str]) -> Reading[str]:
        """Take the next character, and the text up to a character that ends it."""
        source = self._source
        pieces = [source.text[source.at]]
        source.at += 1
        while True:
            match = ends.search(source.text, source.at)
            stop = match.start() if match else len(source.text)
            pieces.append(source.text[source.at : stop])
            source.at = stop
            if match or source.is_closed:
                return "".join(pieces)
            yield

    def _pass_string(self) -> Reading[bool]:
        """Pass on a string whose first quote was taken. False if the answer ends within it."""
        source, write = self._source, self._sink.write
        write('"')
        while True:
            match = self._string_ends.search(source.text, source.at)
            stop = match.start() if match else len(source.text)
            write(quoted(source.text[source.at : stop])[1:-1])
            source.at = stop
            marker = match.group() if match else ""  # or the beginning of one, at the end of the text
            if marker and marker in (self._quote, self._calls.end):
                is_end = self._is_end(marker)
                if is_end:
                    if marker == self._quote:
                        source.at += len(marker)
                    write('"')
                    return True
                if is_end is not None:
                    source.at += len(marker)
                    write(quoted(marker)[1:-1])
                    continue
            elif source.is_closed:
                write(quoted(source.text[source.at :])[1:-1])
                source.at = len(source.text)
                return False
            yield

    def _is_end(self, marker: str) -> bool | None:
        """Whether the marker that is next ends a string. None: that is not known yet."""
        source = self._source
        at = source.at + len(marker)
        if marker != self._quote:  # the last quote is missing, if nothing but calls follows
            return what_follows(source.text, at, {self._calls.begin}, source.is_closed)
        in_object = self._structure.in_object
        return _can_continue(source.text, at, self._quote, self._calls.end, in_object, source.is_closed)


def _can_continue(text: str, at: int, quote: str, end: str, in_object: bool, is_closed: bool) -> bool | None:
    """Whether the text can follow a string. None: that depends on text which has not arrived."""
    following = after_space(text, at)
    if following - at == MAX_SPACE:
        return True
    if following == len(text):
        return True if is_closed else None
    if text[following] in "}]" or (end and text.startswith(end, following)):
        return True
    if text[following] == ",":
        return _can_follow_comma(text, following + 1, quote, is_closed) if in_object else True
    is_beginning_of_end = bool(end) and end.startswith(text[following:])
    if not is_beginning_of_end:
        return False
    return True if is_closed else None


def _can_follow_comma(text: str, at: int, quote: str, is_closed: bool) -> bool | None:
    """Whether the text after a comma can be a member of an object, or the end of the object."""
    rest = text[after_space(text, at) :]
    if rest.startswith((quote, "}")):
        return True
    key = _KEY.match(rest)
    if key is not None and key.end() < len(rest):
        return rest[key.end()] == ":" and quote not in key.group()
    if rest and key is None:
        return False
    return True if is_closed or len(rest) > _MAX_KEY else None
