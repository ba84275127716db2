"""Reads calls of Python functions with literal arguments, and writes the arguments as JSON.

What comes in is the text from the name of a function, or from the bracket of a list of calls. What goes out, to the
sink, is the name and the JSON of each argument, when it is complete:

    [get_weather(city='Oslo', days=3)]
    get_weather {"city": "Oslo", "days": 3}

An argument without a name is the value of the next parameter in the schema of the tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache

from ..format import Pythonic
from .json_string import take_quotes
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
    return (yield from _ArgumentsReader(source, end, sink, name, needs_names=needs_names).read())


class _ArgumentsReader:
    """Reads the arguments of one call. The call begins in the sink when the first of them is read."""

    def __init__(self, source: Source, end: str, sink: Sink, name: str, *, needs_names: bool) -> None:
        """end: the marker after the call. needs_names: without the name of its first argument it is not a call."""
        self._source = source
        self._end = end
        self._sink = sink
        self._name = name
        self._needs_names = needs_names
        self._parameters = _parameters(sink, name)
        self._num_read = 0
        self._has_begun = False
        self._separator = ""  # before the next member of the object

    def read(self) -> Reading[bool]:
        """Read the arguments and the last parenthesis. False if it is not a call, or it is not complete."""
        source = self._source
        while (following := (yield from skip_space(source))) != ")":
            if following == "," and self._num_read:
                source.at += 1
                if (yield from skip_space(source)) == ")":
                    break
            if self._num_read and (following == "]" or (self._end and (yield from is_next(source, self._end)))):
                self._end_call()  # the last parenthesis is missing
                return following == "]"
            if not (yield from self._read_argument()):
                if self._has_begun:
                    self._sink.end()
                return False
            self._num_read += 1
        source.at += 1
        self._end_call()
        return True

    def _read_argument(self) -> Reading[bool]:
        """Read one argument. False if the answer ends within it, or it shows that this is not a call."""
        key = yield from _take_name(self._source)
        if key and (yield from skip_space(self._source)) == "=":
            self._source.at += 1
            yield from skip_space(self._source)
            self._write_member(f"{quoted(key)}: ")
            text, is_complete = yield from _take_literal(self._source, self._end)
            self._sink.write(_as_json(text) if is_complete else beginning(text))
            return is_complete
        if self._needs_names and not self._num_read:
            return False
        text, is_complete = yield from _take_literal(self._source, self._end)
        members = _positional(key + text, self._parameters[self._num_read :]) if is_complete else None
        if members is None:
            if not self._num_read:
                return False
            members = f"{quoted(key)}: {_as_json(text)}" if key and is_complete else ""  # `=` is missing
        self._write_member(members)
        return is_complete

    def _begin_call(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._sink.begin(self._name)
            self._sink.write("{")

    def _write_member(self, text: str) -> None:
        self._begin_call()
        if text:
            self._sink.write(self._separator + text)
            self._separator = ", "

    def _end_call(self) -> None:
        self._begin_call()
        self._sink.write("}")
        self._sink.end()


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


def _take_literal(source: Source, end: str) -> Reading[tuple[str, bool]]:
    """Take a literal, up to what follows it: a comma, a parenthesis or the marker. False if the answer ends first."""
    structure = _structure(end[:1])
    pieces: list[str] = []
    depth = 0  # brackets that are open
    while True:
        match = structure.search(source.text, source.at)
        stop = match.start() if match else len(source.text)
        pieces.append(source.text[source.at : stop])
        source.at = stop
        if match is None:
            if source.is_closed:
                return "".join(pieces), False
            yield
            continue
        character = match.group()
        if depth == 0 and character in ",)]":
            return "".join(pieces), True
        if end and character == end[0] and (yield from is_next(source, end)):
            return "".join(pieces), True
        source.at += 1
        if character in "\"'":
            if not (yield from _take_string(source, character, end, depth == 0, pieces)):
                return "".join(pieces), False
            continue
        pieces.append(character)
        if character in "([{":
            depth += 1
        elif character in ")]}" and depth:
            depth -= 1


def _take_string(source: Source, quote: str, end: str, is_argument: bool, pieces: list[str]) -> Reading[bool]:
    """Take a string, the first quote of which was taken, as a literal that is valid: with its line breaks and quotes
    escaped. False if the answer ends within it.

    is_argument: the string is a whole argument, rather than a part of one.
    """
    pieces.append(quote)
    num_quotes = 1 + (yield from take_quotes(source, quote))
    if num_quotes == 2:  # the string is empty
        pieces.append(quote)
        return True
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
            yield from _take_escape(source, pieces)
        elif character == quote and (yield from _take_end(source, quote * num_quotes, end, is_argument)):
            pieces.append(quote)
            return True
        else:
            source.at += 1
            pieces.append(f"\\{quote}" if character == quote else _control(character))


def _take_escape(source: Source, pieces: list[str]) -> Reading[None]:
    """Take a backslash and the character after it. A control character does not have an escape of its own."""
    source.at += 1
    escaped = yield from peek(source)
    if escaped:
        source.at += 1
        pieces.append(f"\\{escaped}" if escaped >= " " else f"\\\\{_control(escaped)}")


def _take_end(source: Source, quotes: str, end: str, is_argument: bool) -> Reading[bool]:
    """Take the quotes that end the string. False and nothing if it does not end here.

    One quote ends it only if what follows can follow a value. A limited number of characters after it is looked at.
    """
    if len(quotes) == 1:
        while (can_end := _can_continue(source.text, source.at + 1, end, is_argument, source.is_closed)) is None:
            yield
        if not can_end:
            return False
    return (yield from take(source, quotes))


def _control(character: str) -> str:
    return f"\\x{ord(character):02x}"


def _can_continue(text: str, at: int, end: str, is_argument: bool, is_closed: bool) -> bool | None:
    """Whether the text can follow a string. None: that depends on text which has not arrived."""
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
        if rest == end:
            return True
        if not end.startswith(rest):
            return False
        return True if is_closed else None
    if character in "\"'":
        return following > at  # strings beside each other are one
    return character in (")" if is_argument else ")]}:")


def _argument_follows(text: str, at: int, is_closed: bool) -> bool | None:
    """Whether the text after a comma can be an argument, or the end of the call."""
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
