from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.config.source.interpolate import InterpolationError, interpolate, names_only

ENV = {"A": "1", "EMPTY": "", "NAME": "x", "CUNNING": "${A}"}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("${A}", "1"),
        ("a${A}b${NAME}", "a1bx"),
        ("${B:-7}", "7"),
        ("${EMPTY:-7}", "7"),
        ("${EMPTY}", ""),
        ("${A:?needed}", "1"),
        ("${B:-${A}}", "1"),
        ("${B:-${C:-deep}}", "deep"),
        ("$$", "$"),
        ("$${A}", "${A}"),
        ("$5 and $", "$5 and $"),
        ("${CUNNING}", "${A}"),
        ("${B:-}", ""),
    ],
)
def test_forms_are_filled_in(text: str, filled: str) -> None:
    assert interpolate(text, ENV) == filled


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        ("x${B}", "C111", "${B}"),
        ("${B:?set B}", "C111", "${B:?set B}"),
        ("${EMPTY:?}", "C111", "${EMPTY:?}"),
        ("${A", "C112", "${A"),
        ("${}", "C112", "${}"),
        ("${A-b}", "C112", "${A-b}"),
        ("a ${1x} b", "C112", "${1x}"),
        ("${A:-${B}} ${B:-${C}}", "C111", "${C}"),
    ],
)
def test_what_cannot_be_filled_in_is_pointed_at(text: str, code: str, part: str) -> None:
    with pytest.raises(InterpolationError) as caught:
        interpolate(text, ENV)
    assert caught.value.code == code
    assert text[caught.value.start : caught.value.end] == part


def test_a_form_with_a_default_may_show_a_secret() -> None:
    assert names_only("${API_KEY}")
    assert names_only("${API_KEY:?set it}")
    assert not names_only("${API_KEY:-sk-123}")
    assert not names_only("sk-${API_KEY}")


def test_a_text_that_grows_without_end_is_refused() -> None:
    with pytest.raises(InterpolationError):
        interpolate("${BIG}" * 100, {"BIG": "x" * 100_000})


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("${}:-?AB ")), max_size=40))
def test_no_text_makes_it_stumble(text: str) -> None:
    with contextlib.suppress(InterpolationError):
        assert "\0" not in interpolate(text, ENV)
