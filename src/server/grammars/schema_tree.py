"""The subschemas of a JSON schema: walking over them, and rebuilding a schema from changed ones.

subschemas({"properties": {"a": {"type": "string"}}})
-> ("", the schema itself), ("/properties/a", {"type": "string"})
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

# Keywords whose values are subschemas: one, a list of them, or a mapping of names to them.
_ONE = ("items", "additionalItems", "additionalProperties")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")


def subschemas(schema: Any, pointer: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every schema that is an object within this one, itself first, with their JSON pointers."""
    if not isinstance(schema, dict):
        return
    yield pointer, schema
    for name, value in schema.items():
        place = f"{pointer}/{escaped(name)}"
        if name in _ONE and isinstance(value, dict):
            yield from subschemas(value, place)
        elif name in _LISTS and isinstance(value, list):
            for index, child in enumerate(value):
                yield from subschemas(child, f"{place}/{index}")
        elif name in _MAPS and isinstance(value, dict):
            for key, child in value.items():
                yield from subschemas(child, f"{place}/{escaped(key)}")


def rebuilt(schema: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """A copy in which `change` has been applied to every subschema that is an object, inner ones first."""
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _ONE and isinstance(value, dict):
            value = rebuilt(value, change)
        elif name in _LISTS and isinstance(value, list):
            value = [rebuilt(child, change) for child in value]
        elif name in _MAPS and isinstance(value, dict):
            value = {key: rebuilt(child, change) for key, child in value.items()}
        result[name] = value
    return change(result)


def escaped(part: Any) -> str:
    """Escape a part of a JSON pointer."""
    return str(part).replace("~", "~0").replace("/", "~1")
