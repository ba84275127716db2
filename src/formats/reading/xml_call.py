"""Reads calls whose arguments are elements, and writes the arguments as JSON.

What comes in is the text from the beginning of a call on. What goes out, to the sink, is the name of the tool and the
JSON of its arguments, while the text arrives:

    <function=get_weather><parameter=city>Oslo</parameter><parameter=days>3</parameter></function>
    get_weather {"city": "Oslo", "days": 3}

Values have no quotes, so the schema of the tool decides their types: the text of a string is passed on as it arrives, a
value of another type when it is complete. A value may contain what looks like its end: element_ends.py decides.
"""

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

Write = Callable[[str], object]

_STRING = frozenset({"string"})
_MAX_JSON_CHECKS = 16  # of one value
_TYPE_ATTRIBUTE = re.compile(r'(?:string|type)="(\w+)"')
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
_WRAPPERS = frozenset({"arguments", "input"})  # what models write around all arguments, if no parameter has this name


def read_xml_call(
    source: Source, style: XmlCall, calls: CallMarkers, end: str, sink: Sink, *, is_bare: bool = False
) -> Reading[None]:
    """Read one call. What is not a call remains kept by the source.

    Where the model's text breaks the form, the call ends without its last brace: it is not taken for a complete one.

    Args:
        end: the marker that follows the call, and is not taken.
        is_bare: no marker announced the call: only tools of the request are called.
    """
    name = yield from _take_tool_name(source, style, sink.tools if is_bare else None)
    if name is None:
        return
    markers = {style.key_begin, style.end, end} - {""}
    if not (yield from _is_call(source, markers, is_certain=not is_bare and bool(style.name_end))):
        return
    sink.begin(name)
    yield from _ArgumentsReader(source, style, calls, end, sink, sink.tools.get(name)).read()
    sink.end()


def _take_tool_name(source: Source, style: XmlCall, known: Mapping[str, Any] | None) -> Reading[str | None]:
    """Take the name and the markers around it. None if there is no name, or it is not among the known ones."""
    yield from skip_space(source)
    if style.name_begin and not (yield from take(source, style.name_begin)):
        return None
    ends = {style.name_end} if style.name_end else {"\n", style.key_begin, style.end}
    name = yield from take_name(source, ends)
    if name is None or (known is not None and name not in known):
        return None
    yield from take(source, style.name_end)
    if style.index_attribute:
        yield from _take_attributes(source, style)
    return name


def _is_call(source: Source, markers: set[str], *, is_certain: bool) -> Reading[bool]:
    """Whether one of the markers follows the name of the tool.

    is_certain: the text before shows that it is a call, also if the answer ends before the marker is complete.
    """
    yield from skip_space(source)
    while (follows := what_follows(source.text, source.at, markers, source.is_closed)) is None:
        yield
    if any(source.text.startswith(marker, source.at) for marker in markers):
        return True
    source.ends_within = source.ends_within or follows
    return follows and is_certain


def _take_attributes(source: Source, style: XmlCall) -> Reading[str]:
    """Take the rest of a tag, and return it without the tag's end."""
    pieces: list[str] = []
    yield from pass_until(source, {style.tag_end}, pieces.append)
    yield from take(source, style.tag_end)
    return "".join(pieces)


class _ArgumentsReader:
    """Reads the elements of one call, and the end of the call."""

    def __init__(
        self, source: Source, style: XmlCall, calls: CallMarkers, end: str, sink: Sink, schema: JsonSchema | None
    ) -> None:
        """end: the marker that follows the call. schema: of all arguments; None if the tool is unknown."""
        self._source = source
        self._style = style
        self._end = end
        self._sink = sink
        self._schema = schema
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        self._parameters = properties if isinstance(properties, Mapping) and properties else None
        self._value_ends = ElementEnds(calls, style, self._parameters)
        self._separator = ""  # before the next member of the object

    def read(self) -> Reading[None]:
        """Write the object of the arguments; without its brace if the answer breaks off."""
        source, style = self._source, self._style
        self._sink.write("{")
        yield from skip_space(source)
        while (yield from take(source, style.key_begin)):
            key = yield from self._take_key()
            if key is None or not (yield from self._read_value(key)):
                return
            yield from skip_space(source)
        if (yield from self._take_call_end()):
            self._sink.write("}")

    def _take_key(self) -> Reading[str | None]:
        """Take the name of a parameter and the marker after it. None if the answer ends within it."""
        pieces: list[str] = []
        if not (yield from pass_until(self._source, {self._style.key_end}, pieces.append)):
            return None
        self._source.at += len(self._style.key_end)
        key = "".join(pieces).strip()
        if self._style.type_attribute:  # then the key itself is an attribute, and escaped
            key = key.replace("&quot;", '"').replace("&amp;", "&")
        return key

    def _read_value(self, key: str) -> Reading[bool]:
        """Read the rest of an element, and write its member of the object. False if the answer ends within it."""
        types = yield from self._take_types(key)
        if self._style.value_begin:
            yield from skip_space(self._source)
            yield from take(self._source, self._style.value_begin)
        if self._parameters is not None and key in _WRAPPERS and key not in self._parameters:
            return (yield from self._read_wrapper(key))
        self._write_member(quoted(key) + ": ")
        write = self._sink.write
        if types == _STRING:
            write('"')
            is_complete = yield from self._pass_text(lambda text: write(quoted(text)[1:-1]))
            if is_complete:
                write('"')
        else:
            text, is_complete = yield from self._take_text(is_json=True)
            write(typed_text(text, types) if is_complete else beginning(text))
        return is_complete

    def _take_types(self, key: str) -> Reading[frozenset[str]]:
        """Take the attributes after the key, if there are any, and return the types that the argument may have."""
        types = argument_types(self._schema, key)
        if not (self._style.string_attribute or self._style.type_attribute):
            return types
        attributes = yield from _take_attributes(self._source, self._style)
        attribute = _TYPE_ATTRIBUTE.search(attributes)
        if attribute is None:
            return types
        declared = _STRING if attribute[1] in ("true", "string") else ALL_TYPES - _STRING
        return types & declared or types  # the schema decides where it does not allow what the attribute says

    def _read_wrapper(self, key: str) -> Reading[bool]:
        """Read an element that may contain the object of all arguments. False if the answer ends within it."""
        text, is_complete = yield from self._take_text()
        if not is_complete:
            self._write_member(f"{quoted(key)}: {beginning(text)}")
        elif members := _unwrapped(key, text, self._schema):
            self._write_member(members)
        return is_complete

    def _write_member(self, text: str) -> None:
        self._sink.write(self._separator + text)
        self._separator = ", "

    def _take_call_end(self) -> Reading[bool]:
        """Whether the call is complete. Its end is taken, unless it is the marker that the caller takes."""
        source, own_end = self._source, self._style.end
        following = yield from skip_space(source)
        is_complete = yield from take(source, own_end)
        if is_complete and own_end == self._end:
            source.at -= len(own_end)
        elif not is_complete and following and self._end:  # its own end may be missing
            is_complete = yield from is_next(source, self._end)
        return is_complete

    def _take_text(self, *, is_json: bool = False) -> Reading[tuple[str, bool]]:
        """Take the text of a value. Returns it, and whether it is complete.

        is_json: a marker within a string of JSON does not end the value.
        """
        pieces: list[str] = []
        is_complete = yield from self._pass_text(pieces.append, pieces if is_json else None)
        return "".join(pieces), is_complete

    def _pass_text(self, write: Write, json_pieces: list[str] | None = None) -> Reading[bool]:
        """Pass on the text of a value, and take its own end. False if the answer ends first."""
        source, style, ends = self._source, self._style, self._value_ends
        if style.pad:
            yield from take(source, style.pad)
        if style.reads_cdata and (yield from take(source, _CDATA)):
            return (yield from self._pass_cdata(write))
        text = _ValueText(write, json_pieces)
        while True:
            match = ends.pattern.search(source.text, source.at)
            stop = match.start() if match else len(source.text)
            text.add(source.text[source.at : stop])
            source.at = stop
            marker = match.group() if match else ""  # or the beginning of one, at the end of the text
            if marker in ends.markers:
                is_end = self._is_end(marker, text)
                if is_end:
                    self._take_value_end(marker, text)
                    return True
                if is_end is not None:
                    text.add(marker[0])
                    source.at += 1
                    continue
            elif source.is_closed:
                self._pass_rest(text)
                return False
            yield

    def _pass_cdata(self, write: Write) -> Reading[bool]:
        if not (yield from pass_until(self._source, {_CDATA_END}, write)):
            return False
        self._source.at += len(_CDATA_END)
        yield from skip_space(self._source)
        return (yield from take(self._source, self._style.value_end))

    def _is_end(self, marker: str, text: _ValueText) -> bool | None:
        """Whether the marker that is next ends the value. None: that is not known yet."""
        source, end = self._source, self._source.at + len(marker)
        is_end = self._value_ends.fits(marker, source.text, end, text.is_line_start, source.is_closed)
        if is_end and text.is_in_json_string():
            return False
        return is_end

    def _take_value_end(self, marker: str, text: _ValueText) -> None:
        """Take the marker if it is the value's own; others are left for what is read next."""
        if marker in self._value_ends.value_ends:
            self._source.at += len(marker)
            if not self._style.pad:  # else the line break belongs to the marker
                text.write_held()

    def _pass_rest(self, text: _ValueText) -> None:
        """Pass on what the end of the answer leaves, unless a limit cut it within a marker."""
        source = self._source
        rest = source.text[source.at :]
        if not (source.is_cut and len(rest) > 1):
            text.add(rest)
        source.at = len(source.text)
        text.write_held()


class _ValueText:
    """The text of a value, passed on without a line break at its end, which may belong to the marker that follows."""

    __slots__ = ("_held", "_json_pieces", "_num_checks", "_write", "is_line_start")

    def __init__(self, write: Write, json_pieces: list[str] | None) -> None:
        """json_pieces: what was passed on, of a value that may be JSON."""
        self._write = write
        self._json_pieces = json_pieces
        self._num_checks = 0  # whether the pieces end within a string
        self._held = ""  # a line break, or nothing
        self.is_line_start = True

    def add(self, piece: str) -> None:
        if not piece:
            return
        text = self._held + piece
        self.is_line_start = text.endswith("\n")
        self._held = "\n" if self.is_line_start else ""
        self._write(text[:-1] if self.is_line_start else text)

    def write_held(self) -> None:
        self._write(self._held)

    def is_in_json_string(self) -> bool:
        """Whether the value is JSON that ends within a string. After a few calls False: each reads all of the text."""
        if self._json_pieces is None or self._num_checks >= _MAX_JSON_CHECKS:
            return False
        self._num_checks += 1
        return _ends_in_string("".join(self._json_pieces))


def _unwrapped(key: str, text: str, schema: JsonSchema | None) -> str:
    """The JSON of the members that an element stands for: those of its object, or itself if it is not an object."""
    found = literal_json(text)
    members = json.loads(found) if found else None
    if not isinstance(members, dict):
        return f"{quoted(key)}: {typed_text(text, ALL_TYPES)}"
    return ", ".join(
        f"{quoted(name)}: {_of_type(value, argument_types(schema, name))}" for name, value in members.items()
    )


def _of_type(value: Any, types: frozenset[str]) -> str:
    """The JSON of a value that was read from JSON, converted to one of the types if it has none of them."""
    if isinstance(value, str):
        return quoted(value) if "string" in types else typed_text(value, types)
    return typed_text(json.dumps(value, ensure_ascii=False), types - _STRING or types)


def _ends_in_string(text: str) -> bool:
    """Whether this is the beginning of JSON, and ends within a string."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except RecursionError:
        pass
    return False
