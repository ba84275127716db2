from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.config import ConfigError, Layer
from stoker.config.diagnostics import Diagnostic
from stoker.config.source.node import Node
from stoker.config.source.yaml import lines_of, parse
from stoker.config.source_text import SourceText


def read(text: str) -> tuple[Node | None, list[Diagnostic]]:
    found: list[Diagnostic] = []
    return parse(text, SourceText(Layer.FILE, "deploy.yaml", lines_of(text)), found), found


def plain(text: str) -> Any:
    node, found = read(text)
    assert not found
    assert node is not None
    return node.plain()


def code_of(text: str) -> str:
    try:
        _, found = read(text)
    except ConfigError as error:
        return error.diagnostics[-1].code
    return found[0].code


def test_every_value_knows_its_line_and_column() -> None:
    node, _ = read("model:\n  model: x\n  names: [a, b]\n")
    assert node is not None
    section = node.value["model"]  # type: ignore[index, call-overload]
    assert str(section.value["model"].span) == "deploy.yaml:2:10"
    assert str(section.value["model"].key) == "deploy.yaml:2:3"
    assert str(section.value["names"].value[1].span) == "deploy.yaml:3:14"


def test_keys_are_texts_whatever_they_look_like() -> None:
    assert plain("on: 1\nno: 2\n8000: 3\nnull: 4\n") == {"on": 1, "no": 2, "8000": 3, "null": 4}


def test_quotes_make_texts() -> None:
    assert plain("a: '12'\nb: \"true\"\nc: |\n  7\n") == {"a": "12", "b": "true", "c": "7\n"}


def test_aliases_and_merges_work() -> None:
    text = "x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\nz: *x\n"
    assert plain(text) == {"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}, "z": {"a": 1, "b": 2}}


def test_all_duplicate_keys_are_reported_in_one_run() -> None:
    _, found = read("a: 1\nb: 2\na: 3\nb: 4\n")
    assert [(finding.code, str(finding.labels[0].span)) for finding in found] == [
        ("C106", "deploy.yaml:3:1"),
        ("C106", "deploy.yaml:4:1"),
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: !!python/object/apply:os.system [x]", "C110"),
        ("a: !!python/name:os.system", "C110"),
        ("a: !secret x", "C110"),
        ("a: !!binary eA==", "C110"),
        ("a: !!int x", "C104"),
        ("a:\n\tb: 1\n", "C102"),
        ("a: [1,\n", "C102"),
        ("a: 'x", "C102"),
        ("a: \x07", "C102"),
        ("a: &a [*a]", "C102"),
        ("a: 1\n---\nb: 1\n", "C119"),
        ("{a: 1}: 2", "C119"),
        ("? [a]\n: 1", "C119"),
        ("a: b: c", "C102"),
        ("<<: 3", "C104"),
        ("[" * 100_000, "C109"),
    ],
)
def test_what_is_not_a_plain_mapping_of_values_is_refused(text: str, code: str) -> None:
    assert code_of(text) == code


def test_an_alias_bomb_is_refused_at_once() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    began = time.perf_counter()
    assert code_of("\n".join(rows)) == "C109"
    assert time.perf_counter() - began < 1


def test_a_tab_is_named_as_what_it_is() -> None:
    with pytest.raises(ConfigError) as caught:
        read("model:\n\tmodel: x\n")
    assert "a tab in the indentation" in str(caught.value)


def test_an_empty_file_says_nothing() -> None:
    assert read("# only a note\n") == (None, [])


@pytest.mark.slow
@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("ab:-[]{},&*!|>'\"#%@`?<\n\t \x00é€💡\\0~")), max_size=60))
def test_no_text_makes_the_reader_stumble(text: str) -> None:
    with contextlib.suppress(ConfigError):
        node, found = read(text)
        assert all(finding.as_text() for finding in found)
        assert node is None or list(node.scalars()) is not None


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text("abc: #-'\"\n", max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", min_size=1), inner, max_size=3),
        max_leaves=8,
    )
)
def test_what_json_says_is_read_as_json_reads_it(value: Any) -> None:
    import json

    assert plain(json.dumps({"value": value})) == {"value": value}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model:\n  model: m\n   dtype: auto\n", "indent it with 2 spaces, as line 2"),
        ("model:\n  model: m\n\n  # why\n    dtype: auto\n", "indent it with 2 spaces, as line 2"),
        ("model:\nmodel: x\n", "if it belongs below the first `model:`, indent it"),
        ("model:\n  model: m\n dtype: auto\n", "no line above is indented like this key"),
        ("a: 1\nmodel:\n    model: m\n\n  dtype: auto\n", "indent it with 4 spaces, as line 3"),
        ("model:\n  model: @m\n", "cannot begin with @"),
        ("model:\n  model: `m`\n", "write the value in quotes"),
        ("model:\n  model: {{ name }}\n", "of a template was not filled in"),
        ('model:\n  model: "m\n  dtype: auto\n', "the quote is not closed"),
    ],
)
def test_the_commonest_mistakes_are_named(text: str, said: str) -> None:
    """They were: mapping values are not allowed in this context, did not find expected key, duplicate key, found
    character that cannot start any token, a mapping cannot be a key, found unexpected end of stream."""
    found: list[Diagnostic] = []
    try:
        parse(text, SourceText(Layer.FILE, "f.yaml", lines_of(text)), found)
    except ConfigError as error:
        found += error.diagnostics
    assert said in "".join(finding.as_text() for finding in found)
