"""Calls of Python functions with literal arguments."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from ..format import Pythonic
from .json_text import encodable
from .schema_types import quoted
from .sink import Sink
from .source import Reading, Source, peek, skip_space

_NAME = re.compile(r"[\w.\-]+")
_STRUCTURE = re.compile(r"[\"'()\[\]{},]")
_CONSTANTS = {"true": True, "false": False, "null": None}
# The most frequent literals need no parser of Python, which takes longer than all else here.
_SMALL_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_PLAIN_STRING = re.compile(r"""'((?:[^'\\\x00-\x1f\ud800-\udfff]|\\['"\\nrt])*)'""")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}
_STRING_ENDS = {quote: re.compile(rf"[{quote}\\]") for quote in "\"'"}


def read_pythonic(source: Source, style: Pythonic, sink: Sink, *, is_bare: bool = False) -> Reading[None]:
    """Read calls until something else follows. What is not a call remains kept by the source.

    is_bare: no marker says that this is a call: only tools of the request are called.
    """
    first = yield from skip_space(source)
    is_list = first == "["
    if is_list:
        source.at += 1
    elif is_bare:
        return
    while (yield from _read_call(source, sink, is_bare)):
        source.keep()
        following = yield from skip_space(source)
        if following == "," and is_list:
            source.at += 1
        elif following == "]" and is_list:
            source.at += 1
            source.forget()
            return
        elif is_list or not _NAME.match(following):
            return


def _read_call(source: Source, sink: Sink, is_bare: bool) -> Reading[bool]:
    yield from skip_space(source)
    name = yield from _take_name(source)
    if not name or (is_bare and name not in sink.tools) or (yield from peek(source)) != "(":
        return False
    source.at += 1
    sink.begin(name)
    sink.write("{")
    is_first = True
    while (following := (yield from skip_space(source))) != ")":
        if following == "," and not is_first:
            source.at += 1
            if (yield from skip_space(source)) == ")":
                break
        key = yield from _take_name(source)
        if (yield from skip_space(source)) != "=":
            sink.write(("" if is_first else ", ") + key)
            sink.end()
            return False
        source.at += 1
        yield from skip_space(source)
        pieces: list[str] = []
        is_complete = yield from _take_literal(source, pieces)
        text = "".join(pieces)
        sink.write(("" if is_first else ", ") + quoted(key) + ": " + (_as_json(text) if is_complete else text))
        is_first = False
        if not is_complete:
            sink.end()
            return False
    source.at += 1
    sink.write("}")
    sink.end()
    return True


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


def _take_literal(source: Source, pieces: list[str]) -> Reading[bool]:
    """Take a literal, up to the comma or parenthesis after it. False if the answer ends first."""
    depth = 0
    while True:
        match = _STRUCTURE.search(source.text, source.at)
        end = match.start() if match else len(source.text)
        pieces.append(source.text[source.at : end])
        source.at = end
        if match is None:
            if source.is_closed:
                return False
            yield
            continue
        character = match.group()
        if depth == 0 and character in ",)":
            return True
        pieces.append(character)
        source.at += 1
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character != "," and not (yield from _take_string(source, character, pieces)):
            return False


def _take_string(source: Source, quote: str, pieces: list[str]) -> Reading[bool]:
    ends = _STRING_ENDS[quote]
    while True:
        match = ends.search(source.text, source.at)
        end = match.end() if match else len(source.text)
        pieces.append(source.text[source.at : end])
        source.at = end
        if match is None:
            if source.is_closed:
                return False
            yield
        elif match.group() == quote:
            return True
        else:
            pieces.append((yield from peek(source)))
            source.at += 1


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
    try:
        json.loads(text)
        return text
    except (ValueError, RecursionError):
        pass
    try:
        value = _value(ast.parse(text, mode="eval").body)
        return encodable(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return quoted(text)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        return {str(_value(key)): _value(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    return ast.literal_eval(node)
