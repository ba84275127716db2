"""What is written as YAML reads back as the same value, with Stoker's reader and with one of YAML 1.1."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stoker.config.origin import Layer
from stoker.config.source.yaml import lines_of, parse
from stoker.config.source_text import SourceText
from stoker.config.yaml_writer import Commented, Verbatim, comment, document, entry, inline

texts = st.text(max_size=8) | st.text(
    "nyoeEtrufalsNO0123456789.:-+_x ~#{}[],&*!|>'\"%@`=\n\t\u2028\x85\ufeff$", max_size=8
)
scalars = texts | st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def read(text: str) -> Any:
    found: list[Any] = []
    root = parse(text, SourceText(Layer.FILE, "written.yaml", lines_of(text), Path()), found)
    assert root is not None
    assert found == []
    return root.plain()


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(values)
@example("2026-01-01")
@example({"<<": {"a": 1}})
@example([math.inf, -math.inf, 1e22, 1e-7, -0.0])
@example({"a": [{"b": "x\n  y\n"}, {"c": "\nx"}], "d": "x\ny", "e": "x\n\n", "f": [[], {}, ""]})
def test_a_value_reads_back_as_the_same_value(value: Any) -> None:
    assert read(f"a: {inline(value)}\n") == {"a": value}
    assert read("\n".join(entry("a b", value)) + "\n") == {"a b": value}
    assert read(document({"a": {"b": [value, {"c": value}]}})) == {"a": {"b": [value, {"c": value}]}}


@settings(max_examples=300, deadline=None, derandomize=True)
@given(scalars)
@example("0x1f")
@example("12:30")
@example("1e3")
@example(1e22)
def test_a_scalar_reads_back_as_the_same_value_under_yaml_1_1(value: Any) -> None:
    again = yaml.safe_load(f"a: {inline(value)}\n")["a"]
    assert again == value
    assert type(again) is type(value)


def test_nan_is_written_as_yaml_writes_it() -> None:
    assert inline(math.nan) == ".nan"


@pytest.mark.parametrize("text", ["Qwen/Qwen3-8B", "0.0.0.0", "32k", "500ms", "./base.yaml", "http://a:80/v1", "4GiB"])
def test_names_addresses_and_units_need_no_quotes(text: str) -> None:
    assert inline(text) == text


def test_verbatim_text_is_not_quoted_and_comments_precede_their_key() -> None:
    record = {"port": Verbatim("${PORT}"), "size": Commented(Verbatim("4GiB"), "first line\nsecond line")}
    assert document(record) == "port: ${PORT}\n# first line\n# second line\nsize: 4GiB\n"


def test_a_comment_never_ends_early() -> None:
    assert comment("a\nb\u2028c: 1", "  ") == ["  # a b c: 1"]
    assert all(line.startswith("#  ") for line in comment("word " * 60, start="#  "))
    assert comment("") == ["#"]
