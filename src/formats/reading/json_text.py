"""JSON in generated text: a value is passed on while it arrives, and what a model wrote wrongly is repaired on the way.

Valid JSON is passed on byte for byte. Of other text, what comes out is valid JSON as soon as the value is complete: raw
control characters and unknown escapes are escaped, Python's words and quotes become JSON's, trailing commas are left
out as comments are, and brackets that are missing are closed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import cache

from .schema_types import quoted
from .source import MAX_NAME, MAX_SPACE, Reading, Source, after_space, pass_until, peek, run_closed, skip_space, take

Write = Callable[[str], None]

_SPACE = re.compile(r"\s+")
_SPACE_OF_JSON = frozenset(" \t\n\r")
_SPECIAL = {quote: re.compile(rf"[\"\\\x00-\x1f{quote}]") for quote in "\"'"}
_ESCAPE = re.compile(r"""\\(?:(["\\/bfnrt])|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(')|(\n))""")
_ESCAPE_BEGINS = re.compile(r"\\(?:u[0-9a-fA-F]{0,3}|x[0-9a-fA-F]?)?\Z")
_PAIR = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_PAIR_BEGINS = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?\Z")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SCALAR_BEGINS = re.compile(
    rf"(?:{_NUMBER.pattern}|-|-?[0-9.]+(?:[eE][+-]?)?|t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?)\Z"
)
_ESCAPES = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)
_COMMENTED = re.compile(r"([^/]*[^/\s])\s*(?://.*|/\*.*\*/\s*)")
_LOOSE_NUMBER = re.compile(r"([+-]?)(?:(0|[1-9][0-9]*)(\.[0-9]*)?|(\.[0-9]+))")
_WORDS = {
    "true": "true", "false": "false", "null": "null", "none": "null", "undefined": "null",
    "nan": "null", "infinity": "null", "-infinity": "null",
}  # fmt: skip
_KEY_STOPS = re.compile(r"[:,}\]\n]")
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_KEY = re.compile(r"\w{1,64}\s{0,8}")
_SHORT_STRING = re.compile(rf'"([^"\\\x00-\x1f]{{0,{MAX_NAME}}})(")?')


def pass_value(source: Source, write: Write, end: str) -> Reading[bool]:
    """Pass on one value. False if the answer ends within it.

    end: the marker after the call. Outside of strings, the value ends before it, and its open brackets are closed.
    """
    first = yield from peek(source)
    if first and first in "\"'":
        return (yield from _pass_string(source, write, end, in_object=True))
    if first == "" or first not in "{[":
        return (yield from _pass_scalar(source, write, end))
    value = Structure(write)
    while not value.is_complete:
        first = yield from peek(source)
        if not first:
            return False
        if first.isspace():
            space = _SPACE.match(source.text, source.at)
            assert space
            source.at = space.end()
            value.space(space.group())
        elif end and first == end[0] and (yield from take(source, end)):
            source.at -= len(end)
            value.close_all()
        elif first in "\"'":
            is_key = value.item()
            if not (yield from _pass_string(source, write, "" if is_key else end, value.in_object, is_key=is_key)):
                return False
        elif first in ",:":
            source.at += 1
            value.punctuation(first)
        elif first in "}])":
            source.at += 1
            value.close(first)
        elif first in "{[" or (first == "(" and not value.wants_key):
            source.at += 1
            value.open(first)
        elif first == "/" and (yield from _skip_comment(source)):
            value.space(" ")
        elif not (yield from _pass_scalar(source, write, end, is_key=value.item())):
            return False
    return True


def _skip_comment(source: Source) -> Reading[bool]:
    """Take a comment as in JavaScript. False and nothing, if none is next."""
    for begin, end in (("//", "\n"), ("/*", "*/")):
        if (yield from take(source, begin)):
            yield from pass_until(source, {end}, _ignore)
            yield from take(source, end)
            return True
    return False


def _ignore(text: str) -> None:
    pass


class Structure:
    """What an open object or array has, and what it needs next. What it writes keeps the text a beginning of JSON."""

    __slots__ = ("_closing", "_comma", "_num_open", "_state", "_write")

    def __init__(self, write: Write) -> None:
        self._write = write
        self._closing: list[str] = []
        self._num_open = dict.fromkeys(_CLOSING.values(), 0)
        self._state = "item"  # then in an object "colon" and "value", and then "comma"
        self._comma: list[str] | None = None  # a comma and the space after it, until it is known that an item follows

    @property
    def is_complete(self) -> bool:
        return not self._closing and self._state == "comma"

    @property
    def in_object(self) -> bool:
        return bool(self._closing) and self._closing[-1] == "}"

    @property
    def wants_key(self) -> bool:
        return self.in_object and self._state in ("item", "comma")

    def space(self, text: str) -> None:
        text = text if _SPACE_OF_JSON.issuperset(text) else " " * len(text)
        if self._comma is None:
            self._write(text)
        else:
            self._comma.append(text)

    def item(self) -> bool:
        """A key or a value is written next. Whether it is a key."""
        is_key = self.wants_key
        self._separate()
        self._state = "colon" if is_key else "comma"
        return is_key

    def open(self, bracket: str) -> None:
        if self.wants_key:
            return  # a bracket where a key must be: `{{"a": 1}}`
        self._separate()
        self._write("{" if bracket == "{" else "[")
        self._closing.append(_CLOSING[bracket])
        self._num_open[_CLOSING[bracket]] += 1
        self._state = "item"

    def punctuation(self, character: str) -> None:
        if character == ":":
            if self._state == "colon":
                self._write(":")
                self._state = "value"
        elif self._state != "item":
            self._end_member()
            self._comma = [","]
            self._state = "item"

    def close(self, bracket: str) -> None:
        if self._num_open[bracket]:  # else nothing that is open ends here
            self._close_to(bracket)

    def close_all(self) -> None:
        while self._closing:
            self._close_to(self._closing[-1])

    def _close_to(self, bracket: str) -> None:
        while True:
            if self._comma is not None:
                self._write("".join(self._comma[1:]))
                self._comma = None
            else:
                self._end_member()
            top = self._closing.pop()
            self._num_open[top] -= 1
            self._write("}" if top == "}" else "]")
            self._state = "comma"
            if top == bracket:
                return

    def _separate(self) -> None:
        """Write what is missing before an item."""
        if self._comma is not None:
            self._write("".join(self._comma))
            self._comma = None
        elif self._state == "colon":
            self._write(": ")
        elif self._state == "comma":
            self._write(",")

    def _end_member(self) -> None:
        if self._state == "colon":
            self._write(": null")
        elif self._state == "value":
            self._write("null")


def _pass_string(source: Source, write: Write, end: str, in_object: bool, *, is_key: bool = False) -> Reading[bool]:
    """Pass on a string, the quote of which is next.

    A quote ends a value only if what follows it can follow a value: a model forgets to escape quotes within it.
    """
    quote = yield from peek(source)
    source.at += 1
    write('"')
    is_triple = False
    if (yield from peek(source)) == quote:
        source.at += 1
        if (yield from peek(source)) != quote:
            write('"')
            return True
        source.at += 1
        is_triple = True
    pattern = _SPECIAL[quote]
    while True:
        match = pattern.search(source.text, source.at)
        stop = match.start() if match else len(source.text)
        write(source.text[source.at : stop])
        source.at = stop
        if match is None:
            if source.is_closed:
                return False
            yield
            continue
        character = match.group()
        if character == "\\":
            if not (yield from _pass_escape(source, write)):
                return False
        elif character != quote:
            source.at += 1
            write('\\"' if character == '"' else quoted(character)[1:-1])
        elif is_triple:
            if (yield from take(source, quote * 3)):
                write('"')
                return True
            source.at += 1
            write(quoted(quote)[1:-1])
        elif is_key or (yield from _ends_value(source, end, in_object)):
            source.at += 1
            write('"')
            return True
        else:
            source.at += 1
            write(quoted(quote)[1:-1])


def _pass_escape(source: Source, write: Write) -> Reading[bool]:
    """Pass on an escape. One that JSON does not have is a backslash as text, or the character that Python means."""
    while True:
        match = _ESCAPE.match(source.text, source.at)
        if match is None and _ESCAPE_BEGINS.match(source.text, source.at):
            if source.is_closed:
                source.at = len(source.text)
                return False
            yield
            continue
        if match is None:
            source.at += 1
            write("\\\\")
            return True
        source.at = match.end()
        plain, unicode, byte, apostrophe, _ = match.groups()
        if unicode and 0xD800 <= int(unicode, 16) < 0xE000:
            yield from _pass_surrogate(source, write, unicode)
        elif plain or unicode:
            write(match.group())
        else:
            write(f"\\u00{byte}" if byte else apostrophe or "\\n")
        return True


def _pass_surrogate(source: Source, write: Write, first: str) -> Reading[None]:
    """Pass on a pair of escapes, the first of which was taken. Half of a pair is no character: readers refuse it."""
    if int(first, 16) < 0xDC00:
        while not source.is_closed and _PAIR_BEGINS.match(source.text, source.at):
            yield
        if second := _PAIR.match(source.text, source.at):
            source.at = second.end()
            write(f"\\u{first}{second.group()}")
            return
    write("\\ufffd")


def _ends_value(source: Source, end: str, in_object: bool) -> Reading[bool]:
    """Whether the quote that is next ends a value. Only a limited number of characters after it is looked at."""
    while (found := _fits(source.text, source.at + 1, end, in_object, source.is_closed)) is None:
        yield
    return found


def _fits(text: str, at: int, end: str, in_object: bool, is_closed: bool) -> bool | None:
    """Whether the text can follow a value. None: that depends on text which has not arrived."""
    following = after_space(text, at)
    if following - at >= MAX_SPACE:
        return True
    if following == len(text):
        return True if is_closed else None
    character = text[following]
    if character in "}])":
        return True
    if character == ",":
        return _item_follows(text, following + 1, is_closed) if in_object else True
    if end and character == end[0]:
        rest = text[following : following + len(end)]
        if rest == end or (end.startswith(rest) and is_closed):
            return True
        return None if end.startswith(rest) else False
    return in_object and character == '"' and "\n" in text[at:following]  # a comma was forgotten


def _item_follows(text: str, at: int, is_closed: bool) -> bool | None:
    """Whether the text after a comma can be a member of an object, or its end."""
    following = after_space(text, at)
    if following == len(text):
        return True if is_closed or following - at >= MAX_SPACE else None
    if text[following] in "\"'}" or text.startswith(("//", "/*"), following):
        return True
    if text[following:] == "/" and not is_closed:
        return None
    key = _KEY.match(text, following)
    if key is None:
        return False
    if key.end() == len(text):
        return True if is_closed else None
    return text[key.end()] == ":"


@cache
def _scalar_stops(end: str) -> re.Pattern[str]:
    """What ends a number or a word. end: the first character of a marker."""
    return re.compile(rf"[,}}\]\n{re.escape(end)}]")


def _pass_scalar(source: Source, write: Write, end: str, *, is_key: bool = False) -> Reading[bool]:
    """Pass on a number or a word, which becomes a string if JSON does not have it."""
    stops = _KEY_STOPS if is_key else _scalar_stops(end[:1])
    pieces: list[str] = []
    while True:
        match = stops.search(source.text, source.at)
        stop = match.start() if match else len(source.text)
        pieces.append(source.text[source.at : stop])
        source.at = stop
        if match is None:
            if source.is_closed:
                text = "".join(pieces)
                if not is_key and _SCALAR_BEGINS.match(text):
                    write(text)
                return False
            yield
        elif match.group() in ":,}]\n":
            break
        elif (yield from take(source, end)):
            source.at -= len(end)
            break
        else:
            pieces.append(source.text[source.at])
            source.at += 1
    text = "".join(pieces)
    visible = text.rstrip()
    write(quoted(visible) if is_key else _scalar(visible))
    if _SPACE_OF_JSON.issuperset(text[len(visible) :]):
        write(text[len(visible) :])
    return True


def _scalar(text: str) -> str:
    if (commented := _COMMENTED.fullmatch(text)) and not (found := _scalar(commented[1])).startswith('"'):
        return found
    if _NUMBER.fullmatch(text):
        return "null" if math.isinf(float(text)) else text  # as for Infinity: readers refuse it
    if word := _WORDS.get(text.lower()):
        return word
    if number := _LOOSE_NUMBER.fullmatch(text):
        sign, whole, after, fraction = number.groups()
        return f"{'-' if sign == '-' else ''}{whole or 0}{'.0' if after == '.' else after or fraction or ''}"
    return quoted(text) if text else "null"


def beginning(text: str) -> str:
    """A beginning of JSON, for the beginning of a value at which the answer ended: readers of partial JSON take it."""
    pieces: list[str] = []
    source = Source()
    source.push(text.lstrip())
    run_closed(source, pass_value(source, pieces.append, ""))
    return "".join(pieces)


def with_whole_characters(text: str) -> str:
    """JSON without escapes that are half of a surrogate pair, and without the characters themselves."""
    if "\\u" in text:
        text = _ESCAPES.sub(lambda found: "\\ufffd" if found[1] else found[0], text)
    return encodable(text)


def repaired(text: str) -> str | None:
    """The JSON text of an object or array that was written in Python, or with mistakes. None if it is not complete."""
    text = text.strip()
    if not text.startswith(("{", "[")):
        return None
    pieces: list[str] = []
    source = Source()
    source.push(text)
    is_complete = run_closed(source, pass_value(source, pieces.append, ""))
    return "".join(pieces) if is_complete and not source.text[source.at :].strip() else None


def take_string(source: Source) -> Reading[str | None]:
    """Take a string and return its value. None if no string is next, or the answer ends within it."""
    quote = yield from peek(source)
    if not quote or quote not in "\"'":
        return None
    pieces: list[str] = []
    if not (yield from _pass_string(source, pieces.append, "", False, is_key=True)):
        return None
    return encodable(json.loads("".join(pieces)))


def take_short_string(source: Source) -> Reading[str | None]:
    """Take a string of at most MAX_NAME characters without escapes, and nothing of any other string."""
    while True:
        match = _SHORT_STRING.match(source.text, source.at)
        if match and match[2]:
            source.at = match.end()
            return match[1]
        is_end = (match.end() if match else source.at) == len(source.text)
        if source.is_closed or not is_end:
            source.ends_within = source.ends_within or is_end
            return None
        yield


def encodable(text: str) -> str:
    """Replace halves of surrogate pairs, which escapes can produce and UTF-8 does not have."""
    return text.encode("utf-8", "replace").decode()


def take_value(source: Source, end: str) -> Reading[str | None]:
    """Take a JSON value and return its text. None if it is not complete."""
    pieces: list[str] = []
    is_complete = yield from pass_value(source, pieces.append, end)
    return "".join(pieces) if is_complete and pieces else None


def take_key(source: Source, *, is_short: bool = False) -> Reading[str | None]:
    """Take `"key":` of an object, with white space. None if none is next."""
    yield from skip_space(source)
    key = yield from (take_short_string if is_short else take_string)(source)
    if key is None or (yield from skip_space(source)) != ":":
        return None
    source.at += 1
    yield from skip_space(source)
    return key
