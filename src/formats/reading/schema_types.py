"""The JSON types that a schema allows, for formats in which values are written without quotes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any

JsonSchema = Mapping[str, Any]
ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_MAX_DEPTH = 16  # of references and unions


def argument_types(schema: JsonSchema | None, key: str) -> frozenset[str]:
    """The types of one argument, by the schema of all arguments. All types if the schema says nothing."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    argument = properties.get(key) if isinstance(properties, Mapping) else None
    return types_of(argument, schema) if argument is not None else ALL_TYPES


def types_of(schema: Any, root: Any) -> frozenset[str]:
    """The types that a schema allows. root: what its references refer to."""
    return _types(schema, root, _MAX_DEPTH)


def resolved(schema: Any, root: Any) -> Mapping[str, Any]:
    """The schema, or the one that it refers to; one that allows all if it is none."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, Mapping):
            return {}
        if not isinstance(reference := schema.get("$ref"), str):
            return schema
        schema = _find(reference, root)
    return {}


def _types(schema: Any, root: Any, depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth == 0:
        return ALL_TYPES
    if isinstance(reference := schema.get("$ref"), str):
        return _types(_find(reference, root), root, depth - 1)
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(each for each in declared if isinstance(each, str)) or ALL_TYPES
    for union in ("anyOf", "oneOf"):
        if isinstance(members := schema.get(union), list) and members:
            return frozenset[str]().union(*(_types(member, root, depth - 1) for member in members))
    if isinstance(members := schema.get("allOf"), list) and members:
        return ALL_TYPES.intersection(*(_types(member, root, depth - 1) for member in members)) or ALL_TYPES
    if isinstance(values := schema.get("enum"), list) and values:
        return frozenset(map(type_of, values))
    if "const" in schema:
        return frozenset({type_of(schema["const"])})
    if "properties" in schema:
        return frozenset({"object"})
    return ALL_TYPES


def _find(reference: str, root: Any) -> Any:
    if not reference.startswith("#"):
        return None
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        root = root.get(name) if isinstance(root, Mapping) else None
    return root


def type_of(value: Any) -> str:
    """The JSON type of a value."""
    if value is None:
        return "null"
    for type_, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, type_):
            return name
    return "object"


def json_text(text: str, types: frozenset[str]) -> str:
    """The JSON text of a value that was written without quotes if it is a string."""
    bare = text.strip()
    if types == {"boolean"} and bare.lower() in ("true", "false"):
        return bare.lower()
    try:
        found = type_of(json.loads(bare, parse_constant=_no_constant))
    except (ValueError, RecursionError):
        return quoted(text)
    allowed = found in types or (found == "integer" and "number" in types)
    if found == "string" and types != ALL_TYPES:
        # a string is written without quotes; a model that quotes a value of another type made a mistake
        allowed = "string" not in types
    return bare if allowed or "string" not in types else quoted(text)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def quoted(text: str) -> str:
    """The JSON text of a string. Ten times as fast as json.dumps, which makes an encoder for each call."""
    return encode_basestring(text)
