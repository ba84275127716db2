"""JSON in generated text: a value is passed on while it arrives, and what a model wrote wrongly is repaired on the way.

What comes in is text that begins with a value. Valid JSON goes out byte for byte; of other text, what goes out is valid
JSON as soon as the value is complete. Comments and trailing commas are left out, and missing brackets are closed:

    read:    {'a': True, /* none */ "b": [1, 2,</tool_call>
    written: {"a": true,   "b": [1, 2]}

This module decides which part of the value is next. Each kind of part has its own module: json_structure.py for
brackets and separators, json_string.py for strings, json_scalar.py for numbers and words.
"""

from __future__ import annotations

import re

from .json_scalar import pass_scalar
from .json_string import pass_string, place_in, take_short_string, take_string
from .json_structure import Structure, Write
from .source import Reading, Source, is_next, pass_until, peek, run_closed, skip_space, take

_SPACE = re.compile(r"\s+")


def pass_value(source: Source, write: Write, end: str) -> Reading[bool]:
    """Pass on one value. False if the answer ends within it.

    end: the marker after the call. Outside of strings, the value ends before it, and its open brackets are closed.
    """
    first = yield from peek(source)
    if first and first in "\"'":
        return (yield from pass_string(source, write, place_in(end=end, in_object=True)))
    if not first or first not in "{[":
        return (yield from pass_scalar(source, write, end))
    structure = Structure(write)
    is_cut = False
    while not (is_cut or structure.is_complete):
        first = source.text[source.at : source.at + 1] or (yield from peek(source))  # mostly without a generator
        if not first:
            is_cut = True
        elif first.isspace():
            _take_space(source, structure)
        elif end and first == end[0] and (yield from is_next(source, end)):
            structure.close_all()
        elif first in "\"'":
            is_key = structure.begin_item()
            place = None if is_key else place_in(end=end, in_object=structure.in_object)
            is_cut = not (yield from pass_string(source, write, place))
        elif first in ",:}])" or first in "{[" or (first == "(" and not structure.wants_key):
            source.at += 1
            _add_sign(structure, first)
        elif first == "/" and (yield from _skip_comment(source)):
            structure.space(" ")
        else:
            is_cut = not (yield from pass_scalar(source, write, end, is_key=structure.begin_item()))
    return not is_cut


def _take_space(source: Source, structure: Structure) -> None:
    space = _SPACE.match(source.text, source.at)
    assert space
    source.at = space.end()
    structure.space(space.group())


def _add_sign(structure: Structure, sign: str) -> None:
    if sign in ",:":
        structure.separator(sign)
    elif sign in "}])":
        structure.close(sign)
    else:
        structure.open(sign)


def _skip_comment(source: Source) -> Reading[bool]:
    """Take a comment as in JavaScript. False and nothing, if none is next."""
    for begin, end in (("//", "\n"), ("/*", "*/")):
        if (yield from take(source, begin)):
            yield from pass_until(source, {end}, lambda _: None)
            yield from take(source, end)
            return True
    return False


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


def beginning(text: str) -> str:
    """A beginning of JSON, for the beginning of a value at which the answer ended: readers of partial JSON take it."""
    source = Source()
    source.push(text.lstrip())
    written, _ = _read_whole(source)
    return written


def repaired(text: str) -> str | None:
    """The JSON text of an object or array that was written in Python, or with mistakes. None if it is not complete."""
    text = text.strip()
    if not text.startswith(("{", "[")):
        return None
    source = Source()
    source.push(text)
    written, is_complete = _read_whole(source)
    return written if is_complete and not source.text[source.at :].strip() else None


def _read_whole(source: Source) -> tuple[str, bool]:
    """The JSON of a value of which no more text arrives, and whether it is complete."""
    pieces: list[str] = []
    is_complete = run_closed(source, pass_value(source, pieces.append, ""))
    return "".join(pieces), is_complete
