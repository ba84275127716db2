"""The types of an argument, by the schema of its tool."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.formats.reading.schema_types import ALL_TYPES, argument_types

STRING, ANY = frozenset({"string"}), ALL_TYPES


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("#/$defs/City", STRING),
        ("#/properties/all/prefixItems/1", STRING),
        ("#/properties/all/prefixItems/2", ANY),
        ("#/$defs/a~1b", STRING),
        ("#/$defs/a%20b", STRING),
        ("#city", STRING),
        ("#nothing", ANY),  # it was the type of the whole schema: an object, so that the text was no string
        ("#/$defs/Nothing", ANY),
        ("https://example.com/schema", ANY),
        ("#", frozenset({"object"})),
    ],
)
def test_a_reference_has_the_types_of_what_it_names(reference: str, expected: frozenset[str]):
    text = {"type": "string"}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"of": {"$ref": reference}, "all": {"prefixItems": [{"type": "integer"}, text]}},
        "$defs": {"City": {**text, "$anchor": "city"}, "a/b": text, "a b": text, "other": True},
    }
    assert argument_types(schema, "of") == expected
