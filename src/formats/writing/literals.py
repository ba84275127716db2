"""Values in notations other than JSON: Python's, and keys without quotes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..reading.schema_types import resolved, types_of
from .rules import ANY_TEXT, Rules, any_of, quoted

_NUMBER = r"/-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?/"
_INTEGER = "/-?(0|[1-9][0-9]{0,15})/"
_PYTHON_STRING = r"""/'([^'\\\x00-\x1f]|\\['"\\nrt])*'/"""
_KEY = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Notation:
    """quote: the marker around strings, empty for Python's strings; words: true, false, null.

    text: of a string between such markers, as a terminal or a regular expression.
    """

    quote: str
    words: tuple[str, str, str]
    separator: str
    colon: str
    text: str = ANY_TEXT

    def key(self, rules: Rules, key: str) -> str:
        return rules.literal(f"{key}{self.colon}" if self.quote else f"'{_escaped(key)}'{self.colon}")


PYTHON = Notation("", ("True", "False", "None"), ", ", ": ")


def bare(quote: str, text: str) -> Notation:
    return Notation(quote, ("true", "false", "null"), ",", ":", text)


def value(rules: Rules, notation: Notation, schema: Any, root: Any, depth: int = _MAX_DEPTH) -> str:
    """A value of the types of the schema."""
    schema = resolved(schema, root)
    if isinstance(values := schema.get("enum", [schema["const"]] if "const" in schema else None), list) and values:
        return any_of([_constant(rules, notation, each) for each in values])
    found = types_of(schema, root)
    if depth <= 0:
        found -= {"object", "array"}
    bodies = [_typed(rules, notation, each, schema, root, depth) for each in sorted(found)]
    return rules.rule(any_of(bodies) if bodies else _constant(rules, notation, None))


def members(rules: Rules, notation: Notation, schema: Any, root: Any, depth: int = _MAX_DEPTH) -> str:
    """The members of an object, without braces: members that the schema names, or any."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        if schema.get("additionalProperties") is False:
            return '""'
        return _repeated(rules, notation, f"{_any_key(notation)} {value(rules, notation, {}, root, depth - 3)}")
    required = schema.get("required") or []
    items = [
        (f"{notation.key(rules, key)} {value(rules, notation, each, root, depth - 1)}", key in required)
        for key, each in properties.items()
    ]
    return rules.separated(items, notation.separator)


def _any_key(notation: Notation) -> str:
    return f"{_KEY} {quoted(notation.colon)}" if notation.quote else f'"\'" {_KEY} {quoted(chr(39) + notation.colon)}'


def _repeated(rules: Rules, notation: Notation, body: str) -> str:
    return rules.rule(f"(({body}) ({quoted(notation.separator)} ({body}))*)?")


def _typed(rules: Rules, notation: Notation, type_: str, schema: Mapping[str, Any], root: Any, depth: int) -> str:
    match type_:
        case "string" if notation.quote:
            return f"{rules.literal(notation.quote)} {rules.text_until(notation.quote, notation.text)}"
        case "string":
            return rules.rule(_PYTHON_STRING)
        case "integer":
            return rules.rule(_INTEGER)
        case "number":
            return rules.rule(_NUMBER)
        case "boolean":
            return any_of([quoted(word) for word in notation.words[:2]])
        case "null":
            return quoted(notation.words[2])
        case "array":
            items = value(rules, notation, schema.get("items", {}), root, depth - 3)
            return f'"[" {_repeated(rules, notation, items)} "]"'
    return f'"{{" {members(rules, notation, schema, root, depth)} "}}"'


def _constant(rules: Rules, notation: Notation, constant: Any) -> str:
    return rules.literal(_text(notation, constant))


def _text(notation: Notation, constant: Any) -> str:
    if isinstance(constant, str):
        return f"{notation.quote}{constant}{notation.quote}" if notation.quote else f"'{_escaped(constant)}'"
    if constant is None or isinstance(constant, bool):
        return notation.words[2 if constant is None else 1 - constant]
    if isinstance(constant, list):
        return "[" + notation.separator.join(_text(notation, each) for each in constant) + "]"
    if isinstance(constant, Mapping):
        key = "{}" if notation.quote else "'{}'"
        pairs = [f"{key.format(name)}{notation.colon}{_text(notation, each)}" for name, each in constant.items()]
        return "{" + notation.separator.join(pairs) + "}"
    return str(constant)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
