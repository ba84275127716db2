"""Strings of JSON in generated text, passed on as valid JSON while they arrive.

What comes in is text that begins with a quote, single or double or three of them. What goes out is the same string in
JSON: raw control characters and unknown escapes are escaped, and so are quotes that the model forgot to escape. A quote
ends a value only if what follows the quote can follow a value:

    read:    {"say": "a "b" c", "n": 1}
    written: {"say": "a \\"b\\" c", "n": 1}
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache

from .json_structure import Write
from .schema_types import quoted
from .source import MAX_NAME, MAX_SPACE, Reading, Source, after_space, is_next, peek

_SPECIAL = {quote: re.compile(rf"[\"\\\x00-\x1f{quote}]") for quote in "\"'"}
_ESCAPE = re.compile(
    r"""\\(?:(?P<json>["\\/bfnrt])|u(?P<unicode>[0-9a-fA-F]{4})|x(?P<byte>[0-9a-fA-F]{2})|(?P<quote>')|(?P<line>\n))"""
)
_ESCAPE_BEGINS = re.compile(r"\\(?:u[0-9a-fA-F]{0,3}|x[0-9a-fA-F]?)?\Z")
_LOW_SURROGATE = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_LOW_SURROGATE_BEGINS = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?\Z")
_PAIR_OR_HALF = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)
_NO_CHARACTER = "\\ufffd"  # what is written for half of a surrogate pair, which readers of JSON refuse
_KEY = re.compile(r"\w{1,64}\s{0,8}")
_SHORT_STRING = re.compile(rf'"(?P<text>[^"\\\x00-\x1f]{{0,{MAX_NAME}}})(?P<end>")?')


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a string that is a value, which decides what can follow it."""

    end: str  # the marker after the call; empty without one
    in_object: bool  # the value of a key, rather than an item of an array or the whole

    def can_continue(self, text: str, at: int, is_closed: bool) -> bool | None:
        """Whether the text can follow the value. None: that depends on text which has not arrived.

        Only a limited number of characters is looked at.
        """
        following = after_space(text, at)
        if following - at >= MAX_SPACE:
            return True
        if following == len(text):
            return True if is_closed else None
        character = text[following]
        if character in "}])":
            return True
        if character == ",":
            return _can_follow_comma(text, following + 1, is_closed) if self.in_object else True
        if self.end and character == self.end[0]:
            return self._is_end(text, following, is_closed)
        comma_is_missing = character == '"' and "\n" in text[at:following]
        return self.in_object and comma_is_missing

    def _is_end(self, text: str, at: int, is_closed: bool) -> bool | None:
        """Whether the marker after the call is next, also if the end of the answer cuts it."""
        rest = text[at : at + len(self.end)]
        if rest == self.end:
            return True
        if not self.end.startswith(rest):
            return False
        return True if is_closed else None


@cache
def place_in(*, end: str, in_object: bool) -> Place:
    """The place of a value. There are as many as formats have markers, times two."""
    return Place(end, in_object)


def _can_follow_comma(text: str, at: int, is_closed: bool) -> bool | None:
    """Whether the text after a comma can be a member of an object, or the end of the object."""
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


def pass_string(source: Source, write: Write, place: Place | None) -> Reading[bool]:
    """Pass on a string, the quote of which is next. False if the answer ends within it.

    place: of a value; None for a key, which the next quote ends.
    """
    quote = source.text[source.at]
    source.at += 1
    write('"')
    num_quotes = 1 + (yield from take_quotes(source, quote))
    if num_quotes == 2:  # the string is empty
        write('"')
        return True
    is_key = place is None and num_quotes == 1
    special = _SPECIAL[quote]
    while True:
        match = special.search(source.text, source.at)
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
        elif character == quote and (is_key or (yield from _is_end(source, quote * num_quotes, place))):
            source.at += num_quotes
            write('"')
            return True
        else:
            source.at += 1
            write(quoted(character)[1:-1])


def take_quotes(source: Source, quote: str) -> Reading[int]:
    """Take the quotes after the first one of a string, at most two of them. Returns their number."""
    for number in range(2):
        if (yield from peek(source)) != quote:
            return number
        source.at += 1
    return 2


def _is_end(source: Source, quotes: str, place: Place | None) -> Reading[bool]:
    """Whether the quotes that are next end the string of a value. They are not taken."""
    if place is None or len(quotes) > 1:
        return (yield from is_next(source, quotes))
    while (can_end := place.can_continue(source.text, source.at + 1, source.is_closed)) is None:
        yield
    return can_end


def _pass_escape(source: Source, write: Write) -> Reading[bool]:
    """Pass on an escape. One that JSON does not have is a backslash as text, or the character that Python means."""
    while (escape := _ESCAPE.match(source.text, source.at)) is None:
        if not _ESCAPE_BEGINS.match(source.text, source.at):
            source.at += 1
            write("\\\\")
            return True
        if source.is_closed:
            source.at = len(source.text)
            return False
        yield
    source.at = escape.end()
    match escape.lastgroup:
        case "unicode" if 0xD800 <= int(escape["unicode"], 16) < 0xE000:
            yield from _pass_surrogate(source, write, escape["unicode"])
        case "json" | "unicode":
            write(escape.group())
        case "byte":
            write(f"\\u00{escape['byte']}")
        case "quote":
            write("'")
        case "line":
            write("\\n")
    return True


def _pass_surrogate(source: Source, write: Write, first: str) -> Reading[None]:
    """Pass on a surrogate pair, the first escape of which was taken. Half of a pair is not a character."""
    is_high = int(first, 16) < 0xDC00
    if is_high:
        while not source.is_closed and _LOW_SURROGATE_BEGINS.match(source.text, source.at):
            yield
        if second := _LOW_SURROGATE.match(source.text, source.at):
            source.at = second.end()
            write(f"\\u{first}{second.group()}")
            return
    write(_NO_CHARACTER)


def take_string(source: Source) -> Reading[str | None]:
    """Take a string and return its value. None if no string is next, or the answer ends within it."""
    quote = yield from peek(source)
    if not quote or quote not in "\"'":
        return None
    pieces: list[str] = []
    if not (yield from pass_string(source, pieces.append, None)):
        return None
    return encodable(json.loads("".join(pieces)))


def take_short_string(source: Source) -> Reading[str | None]:
    """Take a string of at most MAX_NAME characters without escapes, and nothing of any other string."""
    while True:
        match = _SHORT_STRING.match(source.text, source.at)
        if match and match["end"]:
            source.at = match.end()
            return match["text"]
        looked_at = match.end() if match else source.at
        is_cut = looked_at == len(source.text)
        if source.is_closed or not is_cut:
            source.ends_within = source.ends_within or is_cut
            return None
        yield


def with_whole_characters(text: str) -> str:
    """JSON without escapes that are half of a surrogate pair, and without the characters themselves."""
    if "\\u" in text:
        text = _PAIR_OR_HALF.sub(lambda found: _NO_CHARACTER if found["half"] else found[0], text)
    return encodable(text)


def encodable(text: str) -> str:
    """Replace halves of surrogate pairs, which escapes can produce and UTF-8 does not have."""
    return text.encode("utf-8", "replace").decode()
