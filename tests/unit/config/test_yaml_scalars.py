from __future__ import annotations

import math

import pytest

from stoker.config.yaml_scalars import resolve_plain


@pytest.mark.parametrize(
    "text", ["on", "off", "yes", "no", "y", "1:30", "12:30:45", "2026-01-01", "1_000", "0b1", "<<"]
)
def test_yaml_1_1_surprises_are_texts(text: str) -> None:
    assert resolve_plain(text) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0755", 755),
        ("0o755", 493),
        ("0xff", 255),
        ("-7", -7),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        (".inf", math.inf),
        ("-.inf", -math.inf),
    ],
)
def test_the_core_schema_holds(text: str, value: object) -> None:
    assert resolve_plain(text) == value
    assert type(resolve_plain(text)) is type(value)


def test_a_number_of_a_million_digits_is_a_text() -> None:
    assert resolve_plain("9" * 1_000_000) == "9" * 1_000_000
