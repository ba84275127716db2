"""Calls that are JSON objects with a name and arguments."""

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
        return (yield from _read_member(source, end, sink))
    name: str | None = None
    arguments: str | None = None  # written before the name
    is_written = has_unknown_keys = False
    while (yield from skip_space(source)) != "}":
        key = yield from take_key(source, is_short=is_bare and not is_written)
        if key is None:
            return False
        if key == style.name_key:
            name = yield from (take_short_string if is_bare else take_string)(source)
            if not name or (is_bare and name not in sink.tools):
                return False
        elif key == style.arguments_key or key in style.other_arguments_keys:
            if name is None and is_bare:
                return False
            if name is None or is_written:
                arguments = yield from take_value(source, end)
            else:
                sink.begin(name)
                is_written = True
                is_complete = yield from _pass_arguments(source, end, sink)
                sink.end()
                if not is_complete:
                    return False
        elif is_bare and not is_written and key != "type":
            return False
        else:
            has_unknown_keys = has_unknown_keys or key not in _KNOWN_KEYS
            yield from take_value(source, end)
        following = yield from skip_space(source)
        if following == ",":
            source.at += 1
        elif following != "}":
            return False
    source.at += 1
    if is_written:
        return True
    if name is None or is_bare or (arguments is None and has_unknown_keys):
        return False
    sink.begin(name)
    sink.write(as_object(arguments))
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
    sink.write(as_object(arguments) if is_complete else arguments)
    return is_complete


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
