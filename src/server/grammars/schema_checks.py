"""Checks of a JSON schema before it becomes a grammar: its metaschema, and what no answer can be made to obey.

A keyword that cannot be obeyed is an error with its JSON pointer, as in

    {"properties": {"a": {"uniqueItems": true}}}    -> `response_format.schema#/properties/a/uniqueItems`
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any
from urllib.parse import unquote

import jsonschema
import referencing.exceptions
from jsonschema.validators import validator_for

from ...formats.reading.schema_types import value_at
from ..protocol.errors import ApiError, bad_request
from .lark import check_text
from .patterns import rust_pattern
from .schema_tree import escaped, rebuilt, subschemas

MAX_NODES = 20_000  # of a schema: subschemas, and values of `enum` and `const`
MAX_DEPTH = 64
_SPELLABLE = re.compile(r"[^\x00-\x07\x0b\x0e-\x1f\ud800-\udfff]*")  # with the escapes that answers may have
_MAX_INTEGER = 2**53  # larger ones are not exact for most readers of JSON
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_REASONS = {
    "uniqueItems": "a grammar cannot compare items",
    "contains": "a grammar cannot count items that match",
    "not": "a grammar cannot exclude what a schema describes",
    "$dynamicRef": "use `$ref`",
    "$recursiveRef": "use `$ref`",
}
# The formats of all drafts. One that llguidance does not know is refused.
_FORMATS = (
    *("date-time", "time", "date", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri"),
    *(
        "uri-reference",
        "iri",
        "iri-reference",
        "uuid",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
        "regex",
    ),
)
# Keywords that no answer can be made to obey, and values with which they have no effect: `uniqueItems: false`.
NOT_OBEYED: Mapping[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "propertyNames": (True, {}),
    "minContains": (0,),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "if": (),
    "then": (),
    "else": (),
    "not": (False,),
    "contains": (),
    "maxContains": (),
    "$dynamicRef": (),
    "$recursiveRef": (),
}
_NO_FORMATS = jsonschema.FormatChecker(formats=())  # patterns are those of ECMA-262, which Python cannot check
_DRAFTS = frozenset(
    str(kind.META_SCHEMA.get("$id") or kind.META_SCHEMA.get("id")).rstrip("#")
    for kind in (
        jsonschema.Draft4Validator,
        jsonschema.Draft6Validator,
        jsonschema.Draft7Validator,
        jsonschema.Draft201909Validator,
        jsonschema.Draft202012Validator,
    )
)


def checked(schema: Any, param: str) -> Any:
    """The schema without keywords that have no effect. Raises ApiError for what is wrong or cannot be obeyed."""
    check_size(schema, param)
    check_metaschema(schema, param)
    schema = rebuilt(schema, _without_no_effect)
    places = dict(subschemas(schema))
    for pointer, node in places.items():
        place = f"{param}#{pointer}"
        _check_keywords(node, place)
        _check_reference(node.get("$ref"), schema, places, f"{place}/$ref")
        _check_names(node, place)
        _check_patterns(node, place)
        _check_values(node, place)
        _check_number_of_properties(node, place)
    return schema


def check_size(schema: Any, param: str) -> None:
    """Check the size of a schema before anything recurses into it."""
    num_nodes, stack = 0, [(schema, 0)]
    while stack:
        node, depth = stack.pop()
        num_nodes += 1
        if num_nodes > MAX_NODES or depth > 2 * MAX_DEPTH:
            limit = f"more than {MAX_NODES} nodes" if num_nodes > MAX_NODES else f"more than {MAX_DEPTH} levels"
            raise bad_request(f"the schema is too large: {limit}", code="grammar_too_complex", param=param)
        if isinstance(node, str):
            check_text(node, param)
        elif isinstance(node, dict):
            for key in node:
                check_text(key, param)
            stack += [(child, depth + 1) for child in node.values()]
        elif isinstance(node, list):
            stack += [(child, depth + 1) for child in node]


def check_metaschema(schema: Any, param: str) -> None:
    declared = schema.get("$schema") if isinstance(schema, dict) else None
    kind = validator_for(schema, default=jsonschema.Draft202012Validator)
    if declared is not None and (not isinstance(declared, str) or declared.rstrip("#") not in _DRAFTS):
        message = f"`$schema` is {str(declared)[:80]!r}; known are drafts 4, 6, 7, 2019-09 and 2020-12"
        raise bad_request(message, param=f"{param}#/$schema")
    try:
        kind.check_schema(schema, format_checker=_NO_FORMATS)  # type: ignore[call-arg]
    except jsonschema.SchemaError as error:
        pointer = "".join(f"/{escaped(part)}" for part in error.absolute_path)
        place = f"{param}#{pointer}"
        raise bad_request(f"not a JSON schema: {error.message[:200]} (at `{place}`)", param=place) from None
    except (referencing.exceptions.Unresolvable, RecursionError) as error:
        raise bad_request(f"not a JSON schema: {str(error)[:200]}", param=param) from None


def _without_no_effect(node: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in node.items() if not _has_no_effect(name, value)}


def _has_no_effect(name: str, value: Any) -> bool:
    if name == "format" and value not in _FORMATS:  # such as OpenAPI's int32: an annotation
        return True
    return any(value == each and type(value) is type(each) for each in NOT_OBEYED.get(name, ()))


def _check_keywords(node: Mapping[str, Any], place: str) -> None:
    """Raises ApiError for a keyword that llguidance does not obey."""
    for name in node:
        if name in NOT_OBEYED:
            reason = f": {_REASONS[name]}" if name in _REASONS else ""
            raise _cannot(f"`{name}`{reason}", f"{place}/{escaped(name)}")
    if "x-guidance" in node:
        raise _cannot("`x-guidance`", f"{place}/x-guidance")


def _check_reference(reference: Any, schema: Any, places: Container[str], place: str) -> None:
    """Raises ApiError for a reference to another document, or to what was not checked: it is no place of a subschema.

    places: the JSON pointers of all subschemas that are objects.
    """
    if not isinstance(reference, str):
        return
    if not reference.startswith("#"):
        raise _cannot(f"a reference to another document, {reference[:80]!r}", place)
    pointer = unquote(reference[1:])
    if pointer.startswith("/") and pointer not in places and not isinstance(value_at(schema, pointer), bool):
        raise _cannot(f"a reference to {reference[:80]!r}, where no subschema is; write it into `$defs`", place)


def _check_names(node: Mapping[str, Any], place: str) -> None:
    for name in ("properties", "patternProperties"):
        if not all(map(_SPELLABLE.fullmatch, node.get(name, ()))):
            raise _cannot("a name with control characters", f"{place}/{name}")


def _check_patterns(node: Mapping[str, Any], place: str) -> None:
    for key in node.get("patternProperties", ()):
        _check_pattern(key, f"{place}/patternProperties/{escaped(key)}")
    if isinstance(node.get("pattern"), str):
        _check_pattern(node["pattern"], f"{place}/pattern")


def _check_values(node: Mapping[str, Any], place: str) -> None:
    """Raises ApiError for values that llguidance would read as others."""
    for name in ("const", "enum", "required", *_NUMBERS):
        stack = [node[name]] if name in node else []
        while stack:
            value = stack.pop()
            if isinstance(value, dict):
                stack += [*value, *value.values()]
            elif isinstance(value, list):
                stack += value
            elif isinstance(value, int) and abs(value) > _MAX_INTEGER:
                raise _cannot(f"the integer {value}, which is above 2**53", f"{place}/{name}")
            elif isinstance(value, str) and not _SPELLABLE.fullmatch(value):
                raise _cannot("a text with control characters", f"{place}/{name}")


def _check_number_of_properties(node: Mapping[str, Any], place: str) -> None:
    """Raises ApiError for a number that llguidance would count wrongly."""
    least, required = node.get("minProperties", 0), set(node.get("required", ()))
    is_closed = node.get("additionalProperties") is False and not node.get("patternProperties")
    if least > max(1, len(required)) and not is_closed:
        reason = "names that the schema does not list may repeat; list them, or set `additionalProperties: false`"
        raise _cannot(f"`minProperties`: {reason}", f"{place}/minProperties")


def _check_pattern(pattern: str, place: str) -> None:
    try:
        rust_pattern(pattern)
    except ValueError as error:
        raise _cannot(f"a pattern with {error}", place) from None


def _cannot(what: str, place: str) -> ApiError:
    return bad_request(f"no answer can be made to obey {what} (at `{place}`)", code="grammar_unsupported", param=place)
