from __future__ import annotations

from typing import Any

import pytest

from stoker.config.json_schema import Violation, allowed_text, violations

SERVER = {
    "type": "object",
    "properties": {
        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
        "mode": {"enum": ["a", "b"]},
        "words": {"type": "array", "items": {"type": "string", "minLength": 1}},
        "size": {"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}]},
    },
    "required": ["port"],
    "additionalProperties": False,
}


def test_every_violation_has_its_place_and_what_is_allowed() -> None:
    value = {"prot": 1, "mode": "c", "words": ["x", "", 3], "size": 0}
    assert sorted(violations(SERVER, value), key=lambda found: str(found.place)) == sorted(
        [
            Violation("unknown key", ("prot",), "did you mean `port`?", ("port",)),
            Violation("missing key", ("port",), "a whole number, at least 1, at most 65535"),
            Violation("value", ("mode",), "a, b"),
            Violation("value", ("words", 1), "a text, of a length of at least 1"),
            Violation("type", ("words", 2), "a text, of a length of at least 1"),
            Violation("value", ("size",), "a whole number, at least 1 or auto"),
        ],
        key=lambda found: str(found.place),
    )


def test_a_value_that_the_schema_allows_has_no_violations() -> None:
    assert violations(SERVER, {"port": 1, "mode": "b", "words": ["x"], "size": "auto"}) == []


def test_true_is_not_a_number_and_4_0_is_a_whole_number() -> None:
    assert [found.kind for found in violations(SERVER, {"port": True})] == ["type"]
    assert violations(SERVER, {"port": 4.0}) == []


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "number", "exclusiveMinimum": 0.0}, "a number, greater than 0"),
        ({"type": ["string", "null"]}, "a text or null"),
        ({"const": "no"}, '"no"'),
        ({}, ""),
    ],
)
def test_a_schema_is_shown_in_words(schema: dict[str, Any], text: str) -> None:
    assert allowed_text(schema) == text


def test_a_place_is_shown_as_a_dotted_path() -> None:
    assert Violation("type", ("words", 1)).path("model.settings") == "model.settings.words[1]"
