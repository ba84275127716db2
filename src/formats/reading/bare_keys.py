"""Calls such as call:f{key:value}: keys without quotes, strings between quotes that no text contains."""

from __future__ import annotations

import re

from ..format import BareKeys
from .schema_types import ALL_TYPES, json_text, quoted
from .sink import Sink
from .source import Reading, Source, pass_until, peek, skip_space, take, take_name

_KEY_END = re.compile(r"[:,{}\[\]]")
_MAX_DEPTH = 128  # deeper values break the form: a reader within a reader for each level
_SCALAR_END = re.compile(r"[,{}\[\]<\n]")


def read_bare_keys(source: Source, style: BareKeys, sink: Sink) -> Reading[None]:
    """Read one call. What is not a call remains kept by the source."""
    yield from skip_space(source)
    if not (yield from take(source, style.prefix)):
        return
    name = yield from take_name(source, {"{"})
    if name is None:
        return
    sink.begin(name)
    yield from _pass_members(source, style, sink, 0)
    sink.end()


def _pass_members(source: Source, style: BareKeys, sink: Sink, depth: int) -> Reading[bool]:
    """Pass on an object, the brace of which is next. False where the text breaks the form."""
    source.at += 1
    sink.write("{")
    is_first = True
    while (following := (yield from skip_space(source))) != "}":
        if following == "," and not is_first:
            source.at += 1
            yield from skip_space(source)
        if (yield from peek(source)) == style.quote[0] and (yield from take(source, style.quote)):
            key = yield from _take_quoted(source, style)
        else:
            key = yield from _take_until(source, _KEY_END)
        if (yield from skip_space(source)) != ":":
            sink.write(key)
            return False
        source.at += 1
        sink.write(("" if is_first else ", ") + quoted(key.strip()) + ": ")
        is_first = False
        if not (yield from _pass_value(source, style, sink, depth)):
            return False
    source.at += 1
    sink.write("}")
    return True


def _pass_items(source: Source, style: BareKeys, sink: Sink, depth: int) -> Reading[bool]:
    source.at += 1
    sink.write("[")
    is_first = True
    while (following := (yield from skip_space(source))) != "]":
        if following == "," and not is_first:
            source.at += 1
        elif not is_first or not following:
            return False
        if not is_first:
            sink.write(", ")
        is_first = False
        if not (yield from _pass_value(source, style, sink, depth)):
            return False
    source.at += 1
    sink.write("]")
    return True


def _pass_value(source: Source, style: BareKeys, sink: Sink, depth: int) -> Reading[bool]:
    first = yield from skip_space(source)
    if first in ("{", "["):
        if depth == _MAX_DEPTH:
            return False
        pass_on = _pass_members if first == "{" else _pass_items
        return (yield from pass_on(source, style, sink, depth + 1))
    if first == style.quote[0] and (yield from take(source, style.quote)):
        sink.write('"')
        if not (yield from pass_until(source, {style.quote}, lambda text: sink.write(quoted(text)[1:-1]))):
            return False
        source.at += len(style.quote)
        sink.write('"')
        return True
    text = yield from _take_until(source, _SCALAR_END)
    is_complete = bool((yield from peek(source)) and text.strip())
    # what is not JSON is a string whose quotes the model forgot
    sink.write(json_text(text.strip(), ALL_TYPES) if is_complete else text)
    return is_complete


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
