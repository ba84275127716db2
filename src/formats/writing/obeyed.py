"""What of a schema the grammar of a format cannot enforce, because values are not written as JSON there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..format import BareKeys, Pythonic, Style, XmlCall
from ..reading.schema_types import resolved, types_of

_STRINGS = ("minLength", "maxLength", "format", "pattern")
RAW_TEXT = ("pattern", "minLength", "maxLength")  # of a string that is written without quotes
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_ITEMS = ("minItems", "maxItems", "prefixItems", "additionalItems")
_MEMBERS = ("minProperties", "maxProperties", "patternProperties", "allOf")
_UNIONS = ("anyOf", "oneOf")
_SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})
_MAX_DEPTH = 32


def unobeyed(style: Style, schema: Mapping[str, Any]) -> str | None:
    """The JSON pointer of the first keyword that calls in this style would not obey. None: they obey all.

    schema: of the arguments.
    """
    if isinstance(style, XmlCall):
        return next(_in_elements(schema), None)
    if isinstance(style, Pythonic | BareKeys):
        return next(_in_literals(schema, schema, "", 0), None)
    return None


def _in_elements(schema: Mapping[str, Any]) -> Iterator[str]:
    """Strings at the top are written without quotes; all else is JSON."""
    for key, each in _properties(schema):
        each = resolved(each, schema)
        types = types_of(each, schema)
        if "string" not in types:
            continue
        only_strings = types == {"string"}
        has_enum = only_strings and ("enum" in each or "const" in each)
        checked = (*_STRINGS, *_NUMBERS, "enum", "const", *_ITEMS, *_MEMBERS, "properties", "required", "items")
        obeyed = ("enum", "const") if has_enum else RAW_TEXT if only_strings else ()
        for name in checked:
            if name in each and name not in obeyed:
                yield f"/properties/{_escaped(key)}/{name}"
        for union in _UNIONS:
            if union in each and not all(_is_plain(member) for member in each[union]):
                yield f"/properties/{_escaped(key)}/{union}"


def _in_literals(schema: Any, root: Mapping[str, Any], place: str, depth: int) -> Iterator[str]:
    """Yield what is not obeyed. Types, constants, lists of one kind, and objects by names of properties are."""
    if depth > _MAX_DEPTH:  # it refers to itself
        return
    schema = resolved(schema, root)
    if "enum" in schema or "const" in schema:
        return
    for name in (*_STRINGS, *_NUMBERS, *_ITEMS, *_MEMBERS):
        if name in schema:
            yield f"{place}/{name}"
    for union in _UNIONS:
        if union in schema and not all(_is_plain(member) for member in schema[union]):
            yield f"{place}/{union}"
    if isinstance(schema.get("additionalProperties"), Mapping) and schema["additionalProperties"]:
        yield f"{place}/additionalProperties"
    if isinstance(schema.get("items"), Mapping):
        yield from _in_literals(schema["items"], root, f"{place}/items", depth + 1)
    for key, each in _properties(schema):
        yield from _in_literals(each, root, f"{place}/properties/{_escaped(key)}", depth + 1)


def _is_plain(schema: Any) -> bool:
    """Whether a schema has only scalar types, of which any value is allowed."""
    if not isinstance(schema, Mapping):
        return False
    keywords = {*_STRINGS, *_NUMBERS, *_UNIONS, "enum", "const", "$ref", "allOf"}
    return types_of(schema, {}) <= _SCALARS and not keywords & schema.keys()


def _properties(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        yield from properties.items()


def _escaped(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")
