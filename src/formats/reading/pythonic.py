"""Calls of Python functions with literal arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache

from ..format import Pythonic
from .json_text import beginning
from .schema_types import quoted
from .sink import Sink
from .source import MAX_SPACE, Reading, Source, after_space, is_next, peek, skip_space, take
from .typed_value import literal_json

_NAME = re.compile(r"[\w.\-]+")
# The most frequent literals need no parser of Python, which takes longer than all else here.
_SMALL_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_PLAIN_STRING = re.compile(r"""'((?:[^'\\\x00-\x1f\ud800-\udfff]|\\['"\\nrt])*)'""")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}
_IN_STRING = {quote: re.compile(rf"[{quote}\\\x00-\x1f]") for quote in "\"'"}
_KEYWORD = re.compile(r"[\w.\-]{1,64}\s{0,8}")


def read_pythonic(
    source: Source, style: Pythonic, end: str, sink: Sink, *, is_bare: bool = False, is_first: bool = True
) -> Reading[None]:
    """Read calls until something else follows. What is not a call remains kept by the source.

    is_bare: no marker says that this is a call: only tools of the request are called. is_first: the answer begins with
    it; elsewhere, the first argument must have its name.
    """
    first = yield from skip_space(source)
    is_list = first == "["
    if is_list:
        source.at += 1
    elif is_bare:
        return
    while (yield from _read_call(source, end, sink, is_bare, needs_names=is_bare and not is_first)):
        source.keep()
        following = yield from skip_space(source)
        if following == "," and is_list:
            source.at += 1
            following = yield from skip_space(source)
        if following == "]" and is_list:
            source.at += 1
            source.forget()
            return
        if not _NAME.match(following):
            return


def _read_call(source: Source, end: str, sink: Sink, is_bare: bool, *, needs_names: bool) -> Reading[bool]:
    """Read one call. False if it is none, or the text breaks the form. A call is one when its first argument is."""
    yield from skip_space(source)
    name = yield from _take_name(source)
    if not name or (is_bare and name not in sink.tools) or (yield from peek(source)) != "(":
        return False
    source.at += 1
    parameters = _parameters(sink, name)
    num_arguments = 0
    while (following := (yield from skip_space(source))) != ")":
        if following == "," and num_arguments:
            source.at += 1
            if (yield from skip_space(source)) == ")":
                break
        if num_arguments and (following == "]" or (end and (yield from is_next(source, end)))):
            sink.write("}")  # the last parenthesis is missing
            sink.end()
            return following == "]"
        key = yield from _take_name(source)
        pieces: list[str] = []
        if key and (yield from skip_space(source)) == "=":
            source.at += 1
            yield from skip_space(source)
            if not num_arguments:
                sink.begin(name)
            sink.write((", " if num_arguments else "{") + quoted(key) + ": ")
            is_complete = yield from _take_literal(source, end, pieces)
            text = "".join(pieces)
            sink.write(_as_json(text) if is_complete else beginning(text))
        elif needs_names and not num_arguments:
            return False
        else:
            is_complete = yield from _take_literal(source, end, pieces)
            text = "".join(pieces)
            members = _positional(key + text, parameters[num_arguments:]) if is_complete else None
            if members is None:
                if not num_arguments:
                    return False
                members = f"{quoted(key)}: {_as_json(text)}" if key and is_complete else ""  # `=` is missing
            if not num_arguments:
                sink.begin(name)
                sink.write("{")
            sink.write((", " if num_arguments and members else "") + members)
        num_arguments += 1
        if not is_complete:
            sink.end()
            return False
    source.at += 1
    if not num_arguments:
        sink.begin(name)
        sink.write("{")
    sink.write("}")
    sink.end()
    return True


def _parameters(sink: Sink, name: str) -> list[str]:
    schema = sink.tools.get(name)
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return list(properties) if isinstance(properties, Mapping) else []


def _positional(text: str, parameters: list[str]) -> str | None:
    """The members of an argument without a name: an object of all arguments, or the value of the next parameter."""
    found = literal_json(text.strip().removeprefix("**"))
    if found is None:
        return None
    value = json.loads(found)
    if isinstance(value, dict) and not (parameters and text.lstrip()[:1] != "*" and set(value) - set(parameters)):
        return found.strip()[1:-1]
    return f"{quoted(parameters[0])}: {found}" if parameters else None


def _take_name(source: Source) -> Reading[str]:
    pieces: list[str] = []
    while True:
        match = _NAME.match(source.text, source.at)
        if match:
            pieces.append(match.group())
            source.at = match.end()
        if source.at < len(source.text) or source.is_closed:
            return "".join(pieces)
        yield


@cache
def _structure(end: str) -> re.Pattern[str]:
    """What a literal consists of, beside scalars. end: the first character of a marker."""
    return re.compile(rf"[\"'()\[\]{{}},{re.escape(end)}]")


def _take_literal(source: Source, end: str, pieces: list[str]) -> Reading[bool]:
    """Take a literal, up to the comma, the parenthesis or the marker after it. False if the answer ends first."""
    structure = _structure(end[:1])
    depth = 0
    while True:
        match = structure.search(source.text, source.at)
        stop = match.start() if match else len(source.text)
        pieces.append(source.text[source.at : stop])
        source.at = stop
        if match is None:
            if source.is_closed:
                return False
            yield
            continue
        character = match.group()
        if depth == 0 and character in ",)]":
            return True
        if end and character == end[0] and (yield from is_next(source, end)):
            return True
        source.at += 1
        if character in "\"'":
            if not (yield from _take_string(source, character, end, depth, pieces)):
                return False
            continue
        pieces.append(character)
        if character in "([{":
            depth += 1
        elif character in ")]}" and depth:
            depth -= 1


def _take_string(source: Source, quote: str, end: str, depth: int, pieces: list[str]) -> Reading[bool]:
    """Take a string, the first quote of which was taken, as a literal that is valid: with its line breaks and quotes
    escaped.

    A quote ends it only if what follows it can follow a value.
    """
    pieces.append(quote)
    is_triple = False
    if (yield from peek(source)) == quote:
        source.at += 1
        if (yield from peek(source)) != quote:
            pieces.append(quote)
            return True
        source.at += 1
        is_triple = True
    pattern = _IN_STRING[quote]
    while True:
        match = pattern.search(source.text, source.at)
        stop = match.start() if match else len(source.text)
        pieces.append(source.text[source.at : stop])
        source.at = stop
        if match is None:
            if source.is_closed:
                return False
            yield
            continue
        character = match.group()
        if character == "\\":
            source.at += 1
            escaped = yield from peek(source)
            source.at += bool(escaped)
            pieces.append(f"\\{escaped}" if escaped >= " " else f"\\\\{_control(escaped)}" if escaped else "")
            continue
        if character != quote:
            pieces.append(_control(character))
            source.at += 1
            continue
        is_end = yield from (
            take(source, quote * 3) if is_triple else _ends_string(source, end, is_argument=depth == 0)
        )
        source.at += not (is_end and is_triple)
        if is_end:
            pieces.append(quote)
            return True
        pieces.append(f"\\{quote}")


def _control(character: str) -> str:
    return f"\\x{ord(character):02x}"


def _ends_string(source: Source, end: str, *, is_argument: bool) -> Reading[bool]:
    """Whether the quote that is next ends its string. Only a limited number of characters after it is looked at."""
    while (found := _fits(source.text, source.at + 1, end, is_argument, source.is_closed)) is None:
        yield
    return found


def _fits(text: str, at: int, end: str, is_argument: bool, is_closed: bool) -> bool | None:
    following = after_space(text, at)
    if following - at == MAX_SPACE:
        return True
    if following == len(text):
        return True if is_closed else None
    character = text[following]
    if character == ",":
        return _argument_follows(text, following + 1, is_closed) if is_argument else True
    if end and character == end[0]:
        rest = text[following : following + len(end)]
        return True if rest == end else end.startswith(rest) and (is_closed or None)
    if character in "\"'":
        return following > at  # strings beside each other are one
    return character in (")" if is_argument else ")]}:")


def _argument_follows(text: str, at: int, is_closed: bool) -> bool | None:
    following = after_space(text, at)
    if following == len(text):
        return True if is_closed or following - at == MAX_SPACE else None
    if text[following] in "\"'[{)":
        return True
    keyword = _KEYWORD.match(text, following)
    if keyword is None:
        return False
    if keyword.end() == len(text):
        return True if is_closed else None
    return text[keyword.end()] in "=,)"


def _as_json(text: str) -> str:
    """The JSON text of a literal of Python or JSON; a string of the text itself if it is neither."""
    text = text.strip()
    if word := _WORDS.get(text):
        return word
    if _SMALL_INTEGER.fullmatch(text):
        return text
    if plain := _PLAIN_STRING.fullmatch(text):
        value = plain[1]
        return quoted(_ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), value) if "\\" in value else value)
    return literal_json(text) or quoted(text)
