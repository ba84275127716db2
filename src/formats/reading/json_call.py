"""Calls that are JSON objects with a name and arguments."""

from __future__ import annotations

import json

from ..format import JsonCall
from .json_text import encodable, pass_value, take_key, take_string, take_value
from .sink import Sink
from .source import Reading, Source, skip_space


def read_json_calls(source: Source, style: JsonCall, end: str, sink: Sink, *, is_bare: bool = False) -> Reading[None]:
    """Read an object, several of them, or an array of them. What is not a call remains kept by the source.

    is_bare: no marker says that this is a call: the object begins with its name, which is that of a tool.
    """
    first = yield from skip_space(source)
    is_array = first == "["
    if is_array:
        source.at += 1
    while (yield from _read_object(source, style, end, sink, is_bare)):
        source.keep()
        following = yield from skip_space(source)
        if following == "]" and is_array:
            source.at += 1
            source.forget()
            return
        if following == ("," if is_array else ";"):
            source.at += 1
        elif following != "{":
            return


def _read_object(source: Source, style: JsonCall, end: str, sink: Sink, is_bare: bool) -> Reading[bool]:
    """Read one call. False if it is none, or it is not complete."""
    if (yield from skip_space(source)) != "{":
        return False
    source.at += 1
    if not style.name_key:
        return (yield from _read_member(source, end, sink))
    name: str | None = None
    arguments: str | None = None  # written before the name
    is_written = False
    while (key := (yield from take_key(source))) is not None:
        if key == style.name_key:
            name = yield from take_string(source)
            if name is None or (is_bare and name not in sink.tools):
                return False
        elif is_bare and name is None and key != "type":
            return False
        elif key == style.arguments_key or key in style.other_arguments_keys:
            if name is None or is_written:
                arguments = yield from take_value(source, end)
            else:
                sink.begin(name)
                is_written = True
                if not (yield from _pass_arguments(source, end, sink)):
                    sink.end()
                    return False
                sink.end()
        else:
            yield from take_value(source, end)
        following = yield from skip_space(source)
        if following not in (",", "}"):
            return False
        source.at += 1
        if following == "}":
            break
    if not is_written:
        if name is None or key is None:
            return False
        sink.begin(name)
        sink.write(_as_object(arguments))
        sink.end()
    return True


def _read_member(source: Source, end: str, sink: Sink) -> Reading[bool]:
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


def _pass_arguments(source: Source, end: str, sink: Sink) -> Reading[bool]:
    if (yield from skip_space(source)) == "{":
        return (yield from pass_value(source, sink.write, end))
    pieces: list[str] = []
    is_complete = yield from pass_value(source, pieces.append, end)
    arguments = "".join(pieces)
    sink.write(_as_object(arguments) if is_complete else arguments)
    return is_complete


def _as_object(arguments: str | None) -> str:
    """The arguments as JSON text of an object, also when the model wrote no arguments, null, or a string of JSON."""
    if arguments in (None, "null", '""'):
        return "{}"
    assert arguments is not None
    if arguments.startswith('"'):
        try:
            text = json.loads(arguments, strict=False)
            if isinstance(json.loads(text), dict):
                return encodable(text)
        except (ValueError, RecursionError):
            pass
    return arguments
