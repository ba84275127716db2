"""Calls whose arguments are elements, typed by the schema of the tool."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ..format import XmlCall
from .schema_types import ALL_TYPES, argument_types, json_text, quoted
from .sink import Sink
from .source import Reading, Source, pass_until, skip_space, take, take_name

_STRING = frozenset({"string"})
_MAX_ENDS_IN_STRINGS = 16
_ATTRIBUTE = re.compile(r'(?:string|type)="(\w+)"')


def read_xml_call(source: Source, style: XmlCall, end: str, sink: Sink, *, is_bare: bool = False) -> Reading[None]:
    """Read one call. What is not a call remains kept by the source.

    Where the model's text breaks the form, the call ends without its last brace: it is not taken for a complete one.
    is_bare: no marker says that this is a call: only tools of the request are called.
    """
    yield from skip_space(source)
    if style.name_begin and not (yield from take(source, style.name_begin)):
        return
    ends = {style.name_end} if style.name_end else {"\n", style.key_begin, style.end}
    name = yield from take_name(source, ends)
    if name is None or (is_bare and name not in sink.tools):
        return
    yield from take(source, style.name_end)
    if not style.name_end:
        yield from skip_space(source)
        if not (yield from _is_next(source, style.key_begin)) and not (yield from _is_next(source, style.end)):
            return
    if style.index_attribute:
        yield from _take_attributes(source, style)
    sink.begin(name)
    schema = sink.tools.get(name)
    sink.write("{")
    is_first = True
    while True:
        yield from skip_space(source)
        if not (yield from take(source, style.key_begin)):
            break
        pieces: list[str] = []
        if not (yield from pass_until(source, {style.key_end}, pieces.append)):
            sink.write("".join(pieces))
            sink.end()
            return
        source.at += len(style.key_end)
        key = "".join(pieces).strip()
        if style.type_attribute:
            key = key.replace("&quot;", '"').replace("&amp;", "&")
        types = argument_types(schema, key)
        if style.string_attribute or style.type_attribute:
            attributes = yield from _take_attributes(source, style)
            if found := _ATTRIBUTE.search(attributes):
                types = _STRING if found[1] in ("true", "string") else ALL_TYPES - _STRING
        if style.value_begin:
            yield from skip_space(source)
            yield from take(source, style.value_begin)
        sink.write(("" if is_first else ", ") + quoted(key) + ": ")
        is_first = False
        is_complete = yield from _pass_value(source, style, types, sink.write)
        if not is_complete:
            sink.end()
            return
    following = yield from skip_space(source)
    is_closed = yield from (_is_next(source, end) if style.end == end else take(source, style.end))
    if not is_closed and following and end:  # the call's own end may be missing before the marker that ends it
        is_closed = yield from _is_next(source, end)
    if is_closed:
        sink.write("}")
    sink.end()


def _take_attributes(source: Source, style: XmlCall) -> Reading[str]:
    """Take what follows in a tag, and its end."""
    pieces: list[str] = []
    yield from pass_until(source, {style.tag_end}, pieces.append)
    yield from take(source, style.tag_end)
    return "".join(pieces)


def _is_next(source: Source, marker: str) -> Reading[bool]:
    """Whether the marker is next. It is not taken."""
    if not (yield from take(source, marker)):
        return False
    source.at -= len(marker)
    return True


def _pass_value(source: Source, style: XmlCall, types: frozenset[str], write: Callable[[str], None]) -> Reading[bool]:
    """Pass on a value as JSON. False if the answer ends within it."""
    if types != _STRING:
        pieces: list[str] = []
        for _ in range(_MAX_ENDS_IN_STRINGS):
            if not (yield from pass_until(source, {style.value_end}, pieces.append)):
                write("".join(pieces))
                return False
            source.at += len(style.value_end)
            text = "".join(pieces)
            if not _ends_in_string(text):
                break
            pieces.append(style.value_end)
        write(json_text(text.removeprefix(style.pad).removesuffix(style.pad), types))
        return True
    write('"')
    if style.pad:
        yield from take(source, style.pad)
    held = ""  # the end of the text so far, if it may be the pad before the end

    def pass_on(piece: str) -> None:
        nonlocal held
        text = held + piece
        held = style.pad if style.pad and text.endswith(style.pad) else ""
        write(quoted(text[: len(text) - len(held)])[1:-1])

    if not (yield from pass_until(source, {style.value_end}, pass_on)):
        write(quoted(held)[1:-1])
        return False
    source.at += len(style.value_end)
    write('"')
    return True


def _ends_in_string(text: str) -> bool:
    """Whether this is the beginning of JSON, and ends within a string."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except RecursionError:
        pass
    return False
