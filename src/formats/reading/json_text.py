"""JSON in generated text: where a value ends, while its text is passed on piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from .source import Reading, Source, peek, skip_space, take

_IN_STRING = re.compile(r'["\\]')
_STRUCTURE = re.compile(r'["{}\[\]]')
_SCALAR_END = re.compile(r"[\s,}\]]")


def pass_value(source: Source, write: Callable[[str], None], end: str) -> Reading[bool]:
    """Pass on one JSON value. False if the value is not complete: the answer, or by its marker `end` the call, ended.

    `end` within a string is text of the string. The value itself is not checked: a model's mistakes are passed on.
    """
    first = yield from peek(source)
    if first == '"':
        source.at += 1
        write('"')
        return (yield from _pass_string(source, write))
    if first not in ("{", "["):
        return (yield from _pass_scalar(source, write))
    # A marker begins with a character that no JSON has outside of strings, so only there it must be looked for.
    pattern = re.compile(f"{_STRUCTURE.pattern}|{re.escape(end[0])}") if end else _STRUCTURE
    depth = 0
    while True:
        match = pattern.search(source.text, source.at)
        if match is None:
            write(source.text[source.at :])
            source.at = len(source.text)
            if source.is_closed:
                return False
            yield
            continue
        character = match.group()
        write(source.text[source.at : match.start()])
        source.at = match.start()
        if character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
        elif character != '"' and (yield from take(source, end)):
            source.at -= len(end)
            return False
        source.at += 1
        write(character)
        if depth == 0:
            return True
        if character == '"' and not (yield from _pass_string(source, write)):
            return False


def _pass_string(source: Source, write: Callable[[str], None]) -> Reading[bool]:
    """Pass on a string whose first quote was passed on."""
    while True:
        match = _IN_STRING.search(source.text, source.at)
        end = match.end() if match else len(source.text)
        write(source.text[source.at : end])
        source.at = end
        if match is None:
            if source.is_closed:
                return False
            yield
        elif match.group() == '"':
            return True
        else:
            if not (yield from peek(source)):
                return False
            write(source.text[source.at])
            source.at += 1


def _pass_scalar(source: Source, write: Callable[[str], None]) -> Reading[bool]:
    while True:
        match = _SCALAR_END.search(source.text, source.at)
        end = match.start() if match else len(source.text)
        write(source.text[source.at : end])
        source.at = end
        if match is not None:
            return True
        if source.is_closed:
            return False
        yield


def take_string(source: Source) -> Reading[str | None]:
    """Take a JSON string and return its value. None if no valid string is next."""
    if (yield from peek(source)) != '"':
        return None
    source.at += 1
    pieces = ['"']
    if not (yield from _pass_string(source, pieces.append)):
        return None
    try:
        value = json.loads("".join(pieces), strict=False)
    except ValueError:
        return None
    return encodable(value) if isinstance(value, str) else None


def encodable(text: str) -> str:
    """Without halves of surrogate pairs, which escapes can produce and UTF-8 does not have."""
    return text.encode("utf-8", "replace").decode()


def take_value(source: Source, end: str) -> Reading[str | None]:
    """Take a JSON value and return its text. None if it is not complete."""
    pieces: list[str] = []
    is_complete = yield from pass_value(source, pieces.append, end)
    return "".join(pieces) if is_complete and pieces else None


def take_key(source: Source) -> Reading[str | None]:
    """Take `"key":` of an object, with white space. None if none is next."""
    yield from skip_space(source)
    key = yield from take_string(source)
    if key is None or (yield from skip_space(source)) != ":":
        return None
    source.at += 1
    yield from skip_space(source)
    return key
