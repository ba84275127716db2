"""Calls whose arguments are elements, typed by the schema of the tool."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..format import CallMarkers, XmlCall
from .element_ends import ElementEnds
from .json_text import beginning
from .schema_types import ALL_TYPES, argument_types, quoted
from .sink import JsonSchema, Sink
from .source import Reading, Source, is_next, pass_until, skip_space, take, take_name, what_follows
from .typed_value import literal_json, typed_text

_STRING = frozenset({"string"})
_MAX_ENDS_IN_STRINGS = 16
_ATTRIBUTE = re.compile(r'(?:string|type)="(\w+)"')
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
_WRAPPERS = frozenset({"arguments", "input"})  # what models write around all arguments, if no parameter has this name


def read_xml_call(
    source: Source, style: XmlCall, calls: CallMarkers, end: str, sink: Sink, *, is_bare: bool = False
) -> Reading[None]:
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
    if style.index_attribute:
        yield from _take_attributes(source, style)
    if not (
        yield from _arguments_follow(source, {style.key_begin, style.end, end} - {""}, is_bare or not style.name_end)
    ):
        return
    sink.begin(name)
    schema = sink.tools.get(name)
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    keys = properties if isinstance(properties, Mapping) and properties else None
    value_ends = ElementEnds(calls, style, keys)
    sink.write("{")
    is_first = True
    while True:
        yield from skip_space(source)
        if not (yield from take(source, style.key_begin)):
            break
        pieces: list[str] = []
        if not (yield from pass_until(source, {style.key_end}, pieces.append)):
            sink.end()  # a part of a key is no argument
            return
        source.at += len(style.key_end)
        key = "".join(pieces).strip()
        if style.type_attribute:
            key = key.replace("&quot;", '"').replace("&amp;", "&")
        types = argument_types(schema, key)
        if style.string_attribute or style.type_attribute:
            attributes = yield from _take_attributes(source, style)
            if found := _ATTRIBUTE.search(attributes):
                # the schema decides, and the attribute where the schema allows both
                of_attribute = _STRING if found[1] in ("true", "string") else ALL_TYPES - _STRING
                types = types & of_attribute or types
        if style.value_begin:
            yield from skip_space(source)
            yield from take(source, style.value_begin)
        separator = "" if is_first else ", "
        if keys is not None and key in _WRAPPERS and key not in keys:
            is_complete, members = yield from _take_wrapped(source, style, value_ends, schema, key)
            sink.write((separator if members else "") + members)
            is_first = is_first and not members
        else:
            sink.write(separator + quoted(key) + ": ")
            is_first = False
            is_complete = yield from _pass_value(source, style, value_ends, types, sink.write)
        if not is_complete:
            sink.end()
            return
    following = yield from skip_space(source)
    is_closed = yield from (is_next(source, end) if style.end == end else take(source, style.end))
    if not is_closed and following and end:  # the call's own end may be missing before the marker that ends it
        is_closed = yield from is_next(source, end)
    if is_closed:
        sink.write("}")
    sink.end()


def _arguments_follow(source: Source, literals: set[str], is_needed: bool) -> Reading[bool]:
    """Whether what is next belongs to a call. is_needed: the end of the answer does not."""
    yield from skip_space(source)
    while (found := what_follows(source.text, source.at, literals, source.is_closed)) is None:
        yield
    if any(source.text.startswith(each, source.at) for each in literals):
        return True
    source.ends_within = source.ends_within or found
    return found and not is_needed


def _take_attributes(source: Source, style: XmlCall) -> Reading[str]:
    """Take what follows in a tag, and its end."""
    pieces: list[str] = []
    yield from pass_until(source, {style.tag_end}, pieces.append)
    yield from take(source, style.tag_end)
    return "".join(pieces)


def _pass_value(
    source: Source, style: XmlCall, ends: ElementEnds, types: frozenset[str], write: Callable[[str], None]
) -> Reading[bool]:
    """Pass on a value as JSON. False if the answer ends within it."""
    if types == _STRING:
        write('"')
        is_complete = yield from _pass_text(source, style, ends, lambda text: write(quoted(text)[1:-1]))
        if is_complete:
            write('"')
        return is_complete
    pieces: list[str] = []
    is_complete = yield from _pass_text(
        source, style, ends, pieces.append, lambda: not _ends_in_string("".join(pieces))
    )
    text = "".join(pieces)
    write(typed_text(text, types) if is_complete else beginning(text))
    return is_complete


def _take_wrapped(
    source: Source, style: XmlCall, ends: ElementEnds, schema: JsonSchema | None, key: str
) -> Reading[tuple[bool, str]]:
    """Whether a value is complete that may be an object of all arguments, and the JSON of the members it stands for."""
    pieces: list[str] = []
    is_complete = yield from _pass_text(source, style, ends, pieces.append)
    text = "".join(pieces)
    if not is_complete:
        return False, f"{quoted(key)}: {beginning(text)}"
    found = literal_json(text)
    members = json.loads(found) if found else None
    if not isinstance(members, dict):
        return True, f"{quoted(key)}: {typed_text(text, ALL_TYPES)}"
    return True, ", ".join(
        f"{quoted(name)}: {_of_type(value, argument_types(schema, name))}" for name, value in members.items()
    )


def _of_type(value: Any, types: frozenset[str]) -> str:
    if isinstance(value, str):
        return quoted(value) if "string" in types else typed_text(value, types)
    return typed_text(json.dumps(value, ensure_ascii=False), types - _STRING or types)


def _pass_text(
    source: Source,
    style: XmlCall,
    ends: ElementEnds,
    write: Callable[[str], object],
    may_end: Callable[[], bool] = lambda: True,
) -> Reading[bool]:
    """Pass on the text of a value, and take its end. False if the answer ends within it."""
    if style.pad:
        yield from take(source, style.pad)
    if style.reads_cdata and (yield from take(source, _CDATA)):
        if not (yield from pass_until(source, {_CDATA_END}, write)):
            return False
        source.at += len(_CDATA_END)
        yield from skip_space(source)
        return (yield from take(source, style.value_end))
    held = ""  # a line break, which may belong to the end
    last = ""
    num_tries = 0

    def pass_on(piece: str) -> None:
        nonlocal held, last
        if piece:
            text = held + piece
            held = "\n" if text.endswith("\n") else ""
            write(text[: len(text) - len(held)])
            last = piece[-1]

    while True:
        match = ends.pattern.search(source.text, source.at)
        stop = match.start() if match else len(source.text)
        pass_on(source.text[source.at : stop])
        source.at = stop
        fits: bool | None = None
        if match and (match.group() in ends.markers):
            fits = ends.fits(match.group(), source.text, match.end(), last in ("", "\n"), source.is_closed)
        elif source.is_closed:
            rest = source.text[source.at :]
            if not (source.is_cut and len(rest) > 1):  # it may be the beginning of a marker
                pass_on(rest)
            source.at = len(source.text)
            write(held)
            return False
        if fits is None:
            yield
            continue
        assert match
        if fits and num_tries < _MAX_ENDS_IN_STRINGS:
            num_tries += 1
            fits = may_end()
        if fits:
            break
        pass_on(source.text[source.at])
        source.at += 1
    marker = match.group()
    if marker in ends.value_ends:
        source.at += len(marker)
        if not style.pad:
            write(held)
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
