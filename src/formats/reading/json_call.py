"""Reads calls that are JSON objects with a name and arguments.

What comes in is the text from the first object on, or from the bracket of an array of them. What goes out, to the sink,
is the name and the JSON of the arguments; the arguments are passed on while they arrive, if the name came before them:

    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    get_weather {"city": "Oslo"}
"""

from __future__ import annotations

import json

from ..format import JsonCall
from .json_string import take_short_string, take_string, with_whole_characters
from .json_text import pass_value, repaired, take_key, take_value
from .sink import Sink
from .source import Reading, Source, skip_space

# What a call may have beside its name and arguments. An object with other keys and no arguments is not a call.
_KNOWN_KEYS = frozenset({"type", "id", "index", "call_id", "tool_call_id"})


def read_json_calls(source: Source, style: JsonCall, end: str, sink: Sink, *, is_bare: bool = False) -> Reading[None]:
    """Read an object, several of them, or an array of them. What is not a call remains kept by the source.

    is_bare: no marker says that this is a call: the object begins with the name of a tool, and has
    arguments.
    """
    first = yield from skip_space(source)
    is_array = first == "["
    if is_array:
        source.at += 1
    while (yield from _read_object(source, style, end, sink, is_bare)):
        source.keep()
        following = yield from skip_space(source)
        while following and following in ("}" if is_array else "}]"):  # one bracket too many
            source.at += 1
            source.keep()
            following = yield from skip_space(source)
        if following == ("," if is_array else ";"):
            source.at += 1
            following = yield from skip_space(source)
        elif following != "{" and not (following == "]" and is_array):
            return
        if following == "]" and is_array:
            source.at += 1
            source.forget()
            return


def _read_object(source: Source, style: JsonCall, end: str, sink: Sink, is_bare: bool) -> Reading[bool]:
    """Read one call. False if it is none, or it is not complete."""
    if (yield from skip_space(source)) != "{":
        return False
    source.at += 1
    if not style.name_key:
        return (yield from _read_named_member(source, end, sink))
    return (yield from _ObjectReader(source, style, end, sink, is_bare).read())


def _read_named_member(source: Source, end: str, sink: Sink) -> Reading[bool]:
    """Read the rest of {"f": {...}}. False if it is not a call, or it is not complete."""
    name = yield from take_key(source)
    if not name or (yield from skip_space(source)) != "{":
        return False
    sink.begin(name)
    is_complete = yield from pass_value(source, sink.write, end)
    sink.end()
    if not is_complete or (yield from skip_space(source)) != "}":
        return False
    source.at += 1
    return True


class _ObjectReader:
    """Reads the members of one object, in any order."""

    def __init__(self, source: Source, style: JsonCall, end: str, sink: Sink, is_bare: bool) -> None:
        self._source = source
        self._end = end
        self._sink = sink
        self._is_bare = is_bare
        self._name_key = style.name_key
        self._arguments_keys = (style.arguments_key, *style.other_arguments_keys)
        self._name: str | None = None
        self._arguments: str | None = None  # JSON of arguments that came before the name
        self._is_written = False  # the call has begun, and its arguments were passed on
        self._has_unknown_keys = False

    def read(self) -> Reading[bool]:
        """Read the members and the last brace. False if it is not a call, or it is not complete."""
        source = self._source
        while (yield from skip_space(source)) != "}":
            key = yield from take_key(source, is_short=self._is_bare and not self._is_written)
            if key is None:
                return False
            if key == self._name_key:
                is_read = yield from self._read_name()
            elif key in self._arguments_keys:
                is_read = yield from self._read_arguments()
            else:
                is_read = yield from self._skip_value(key)
            if not is_read:
                return False
            following = yield from skip_space(source)
            if following == ",":
                source.at += 1
            elif following != "}":
                return False
        source.at += 1
        return self._is_written or self._write()

    def _read_name(self) -> Reading[bool]:
        self._name = yield from (take_short_string if self._is_bare else take_string)(self._source)
        return bool(self._name) and not (self._is_bare and self._name not in self._sink.tools)

    def _read_arguments(self) -> Reading[bool]:
        source, sink = self._source, self._sink
        if self._name is None and self._is_bare:
            return False
        if self._name is None or self._is_written:
            self._arguments = yield from take_value(source, self._end)
            return True
        sink.begin(self._name)
        self._is_written = True
        if (yield from skip_space(source)) == "{":
            is_complete = yield from pass_value(source, sink.write, self._end)
        else:
            pieces: list[str] = []
            is_complete = yield from pass_value(source, pieces.append, self._end)
            arguments = "".join(pieces)
            sink.write(as_object(arguments) if is_complete else arguments)
        sink.end()
        return is_complete

    def _skip_value(self, key: str) -> Reading[bool]:
        """Take the value of another key. False if a call without a marker cannot have it before its arguments."""
        if self._is_bare and not self._is_written and key != "type":
            return False
        if key not in _KNOWN_KEYS:
            self._has_unknown_keys = True
        yield from take_value(self._source, self._end)
        return True

    def _write(self) -> bool:
        """Write the call whose arguments were not passed on. False if the object is not a call."""
        if self._name is None or self._is_bare or (self._arguments is None and self._has_unknown_keys):
            return False
        self._sink.begin(self._name)
        self._sink.write(as_object(self._arguments))
        self._sink.end()
        return True


def as_object(arguments: str | None) -> str:
    """The arguments as JSON text of an object, also when the model wrote no arguments, null, or a string of JSON."""
    if arguments in (None, "null", '""'):
        return "{}"
    assert arguments is not None
    if arguments.startswith('"'):
        text = json.loads(arguments)
        try:
            if isinstance(json.loads(text), dict):
                return with_whole_characters(text)
        except (ValueError, RecursionError):
            if text.lstrip().startswith("{") and (found := repaired(text)) is not None:
                return with_whole_characters(found)
    return arguments
