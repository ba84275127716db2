"""A value that was written without quotes, as the JSON of the type that the schema of the tool allows."""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from typing import Any

from .json_string import encodable, with_whole_characters
from .json_text import repaired
from .schema_types import ALL_TYPES, quoted, type_of

_WORDS = {"True": "true", "False": "false", "None": "null"}  # as templates write them that are given Python's values
_WORD_TYPES = {"true": "boolean", "false": "boolean", "null": "null"}
_CONSTANTS = {"true": True, "false": False, "null": None}
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


def typed_text(text: str, types: frozenset[str]) -> str:
    """The JSON text of a value. Text that is of no type which the schema allows becomes a string.

    A string is written without quotes; what is of another type may be written as JSON or as a literal of Python.
    """
    bare = text.strip()
    others = types - {"string"}
    if not others:
        return quoted(text)
    is_only_other = "string" not in types
    word = _WORDS.get(bare) or (bare.lower() if is_only_other else bare)
    if is_only_other and (word == "none" or (not word and "null" in others)):
        word = "null"
    if (word_type := _WORD_TYPES.get(word)) is not None:
        return word if word_type in others or is_only_other else quoted(text)
    if _INTEGER.fullmatch(bare) and "integer" in others:
        return bare
    # Python would read `1, 2` and `1_000` as other values: they are strings where one is allowed.
    found = literal_json(bare, in_python=is_only_other or bare.startswith(("{", "[")), repairs=is_only_other)
    if found is None:
        return quoted(text)
    value = json.loads(found)
    kind = type_of(value)
    if kind == "number" and "integer" in others and "number" not in others and value.is_integer():
        return str(int(value))
    if kind == "string":
        # A model that quotes a value of another type made a mistake.
        if is_only_other:
            return typed_text(value, types) if value != bare else quoted(value)
        return found if types == ALL_TYPES and bare[:1] == '"' else quoted(text)
    if kind == "array" and bare[:1] not in "[({" and "array" not in others:
        return quoted(text)  # `1,000` is not a list
    allowed = kind in others or (kind == "integer" and "number" in others)
    return found if allowed or is_only_other else quoted(text)


def literal_json(text: str, *, in_python: bool = True, repairs: bool = True) -> str | None:
    """The JSON text of a literal of JSON or Python. None if it is neither.

    repairs: an object or array is also read if it has mistakes.
    """
    try:
        json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        return with_whole_characters(text)
    except (ValueError, RecursionError):
        if not in_python:
            return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of escapes that Python does not have
            value = _value(ast.parse(text, mode="eval").body)
        return encodable(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return repaired(text) if repairs else None


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text} is not a number that readers of JSON take")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        return {str(_value(key)): _value(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    return ast.literal_eval(node)
