"""Numbers and words in generated JSON, and keys without quotes.

What comes in is text up to a comma, a bracket, a line break or the marker after the call. What goes out is one value of
JSON: Python's and JavaScript's words become JSON's, numbers get the form that JSON has, other text becomes a string:

    read:    None   .5    1e999   New York
    written: null   0.5   null    "New York"
"""

from __future__ import annotations

import math
import re
from functools import cache

from .json_structure import SPACE_OF_JSON, Write
from .schema_types import quoted
from .source import Reading, Source, is_next

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LOOSE_NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<whole>0|[1-9][0-9]*)(?P<fraction>\.[0-9]*)?|(?P<point_first>\.[0-9]+))"
)
_WORDS = {
    "true": "true", "false": "false", "null": "null", "none": "null", "undefined": "null",
    "nan": "null", "infinity": "null", "-infinity": "null",
}  # fmt: skip
_BEGINS = re.compile(
    rf"(?:{_NUMBER.pattern}|-|-?[0-9.]+(?:[eE][+-]?)?|t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?)\Z"
)
_COMMENTED = re.compile(r"(?P<value>[^/]*[^/\s])\s*(?://.*|/\*.*\*/\s*)")
_STOPS = ":,}]\n"
_KEY_STOPS = re.compile(r"[:,}\]\n]")


@cache
def _value_stops(end: str) -> re.Pattern[str]:
    """What ends a value. end: the first character of a marker."""
    return re.compile(rf"[,}}\]\n{re.escape(end)}]")


def pass_scalar(source: Source, write: Write, end: str, *, is_key: bool = False) -> Reading[bool]:
    """Pass on a number, a word or a key without quotes. False if the answer ends within it.

    end: the marker after the call, which ends a value too.
    """
    stops = _KEY_STOPS if is_key else _value_stops(end[:1])
    text, is_complete = yield from _take_until_stop(source, stops, end)
    if not is_complete:
        if not is_key and _BEGINS.match(text):  # readers of partial JSON take the beginning of a number or a word
            write(text)
        return False
    visible = text.rstrip()
    write(quoted(visible) if is_key else _value_json(visible))
    space = text[len(visible) :]
    if SPACE_OF_JSON.issuperset(space):
        write(space)
    return True


def _take_until_stop(source: Source, stops: re.Pattern[str], end: str) -> Reading[tuple[str, bool]]:
    """Take the text before a character that ends it, or before the marker. False with it if the answer ends first."""
    pieces: list[str] = []
    while True:
        match = stops.search(source.text, source.at)
        stop = match.start() if match else len(source.text)
        pieces.append(source.text[source.at : stop])
        source.at = stop
        if match is None:
            if source.is_closed:
                return "".join(pieces), False
            yield
        elif match.group() in _STOPS or (yield from is_next(source, end)):
            return "".join(pieces), True
        else:  # only the first character of the marker
            pieces.append(source.text[source.at])
            source.at += 1


def _value_json(text: str) -> str:
    commented = _COMMENTED.fullmatch(text)
    if commented:
        value = _value_json(commented["value"])
        if not value.startswith('"'):  # in other text the slashes are a part of it, as in an address
            return value
    if _NUMBER.fullmatch(text):
        return "null" if math.isinf(float(text)) else text  # as for Infinity: readers refuse it
    if word := _WORDS.get(text.lower()):
        return word
    if number := _LOOSE_NUMBER.fullmatch(text):
        return _strict_number(number)
    return quoted(text) if text else "null"


def _strict_number(number: re.Match[str]) -> str:
    """A number in JSON's form: `+1`, `.5` and `1.` are written as 1, 0.5 and 1.0."""
    sign = "-" if number["sign"] == "-" else ""
    fraction = number["fraction"] or number["point_first"] or ""
    return f"{sign}{number['whole'] or '0'}{'.0' if fraction == '.' else fraction}"
