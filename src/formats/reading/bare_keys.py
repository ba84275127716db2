"""Calls such as call:f{key:value}: keys without quotes, strings between quotes that no text contains."""

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
_KEY_FOLLOWS = re.compile(r"[^:,{}\[\]\n]{1,128}")


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
    yield from _pass_object(source, style, calls, sink)
    sink.end()


def _pass_object(source: Source, style: BareKeys, calls: CallMarkers, sink: Sink) -> Reading[None]:
    """Pass on the object of the arguments, the bracket of which is next: a brace, or as some models write, another."""
    value = Structure(sink.write)
    source.at += 1
    value.open("{")
    while not value.is_complete and (first := (yield from skip_space(source))):
        if first == calls.end[:1] and (yield from is_next(source, calls.end)):
            value.close_all()
        elif first == style.quote[0] and (yield from take(source, style.quote)):
            if value.begin_item():
                sink.write(quoted((yield from _take_quoted(source, style)).strip()))
            elif not (yield from _pass_string(source, style, calls, sink, value.in_object)):
                return
        elif first in ",:":
            source.at += 1
            value.separator(first)
            value.space(" ")
        elif first in "}])":
            source.at += 1
            value.close("}" if first == ")" else first)
        elif first in "{[":
            source.at += 1
            value.open(first)
        else:
            is_key = value.begin_item()
            source.at += 1
            text = first + (yield from _take_until(source, _KEY_END if is_key else _SCALAR_END))
            if is_key:
                sink.write(quoted(_QUOTED.sub(r"\2", text.strip())))
            elif (yield from peek(source)):
                # what is not JSON is a string whose quotes the model forgot
                sink.write(typed_text(text.strip(), ALL_TYPES))
            else:
                sink.write(beginning(text))


def _pass_string(source: Source, style: BareKeys, calls: CallMarkers, sink: Sink, in_object: bool) -> Reading[bool]:
    """Pass on a string whose first quote was taken."""
    pattern = markers_pattern(frozenset({style.quote, calls.end} - {""}))
    sink.write('"')
    while True:
        match = pattern.search(source.text, source.at)
        stop = match.start() if match else len(source.text)
        sink.write(quoted(source.text[source.at : stop])[1:-1])
        source.at = stop
        marker = match.group() if match else ""
        if match and marker in (style.quote, calls.end):
            if marker == style.quote:
                fits = _fits(source.text, match.end(), style.quote, calls.end, in_object, source.is_closed)
            else:  # the last quote is missing, if nothing but calls follows
                fits = what_follows(source.text, match.end(), {calls.begin}, source.is_closed)
            if fits is None:
                yield
                continue
            if not fits or marker == style.quote:
                source.at = match.end()
            sink.write('"' if fits else quoted(marker)[1:-1])
            if fits:
                return True
        elif source.is_closed:
            sink.write(quoted(source.text[source.at :])[1:-1])
            source.at = len(source.text)
            return False
        else:
            yield


def _fits(text: str, at: int, quote: str, end: str, in_object: bool, is_closed: bool) -> bool | None:
    """Whether the text can follow a string. None: that depends on text which has not arrived."""
    following = after_space(text, at)
    if following - at == MAX_SPACE:
        return True
    if following < len(text) and text[following] in "}]":
        return True
    if end and text.startswith(end, following):
        return True
    if following < len(text) and text[following] != ",":
        return bool(end) and end.startswith(text[following:]) and (is_closed or None)
    if following < len(text) and not in_object:
        return True
    following = after_space(text, following + 1)
    rest = text[following:]
    if rest.startswith((quote, "}")):
        return True
    key = _KEY_FOLLOWS.match(rest)
    if key is not None and key.end() < len(rest):
        return rest[key.end()] == ":" and quote not in key.group()
    if rest and key is None:
        return False
    return True if is_closed or len(rest) > 128 else None


def _take_quoted(source: Source, style: BareKeys) -> Reading[str]:
    pieces: list[str] = []
    if (yield from pass_until(source, {style.quote}, pieces.append)):
        source.at += len(style.quote)
    return "".join(pieces)


def _take_until(source: Source, ends: re.Pattern[str]) -> Reading[str]:
    pieces: list[str] = []
    while True:
        match = ends.search(source.text, source.at)
        end = match.start() if match else len(source.text)
        pieces.append(source.text[source.at : end])
        source.at = end
        if match or source.is_closed:
            return "".join(pieces)
        yield
