from __future__ import annotations

from stoker.config import Layer
from stoker.config.source_text import SourceText, Span, printable


def text(*lines: str) -> SourceText:
    return SourceText(Layer.FILE, "deploy.yaml", list(lines))


def test_a_secret_is_never_shown_and_carets_stay_in_place() -> None:
    source = text("server: {api_key: sk-123, port: http}")
    source.hide(Span(source, 1, 19, 1, 25))
    line, first, cells = source.shown(1, 33, 37)
    assert line == "server: {api_key: **********, port: http}"
    assert line[first : first + cells] == "http"


def test_a_caret_under_a_secret_covers_the_asterisks() -> None:
    source = text("key: sk-123")
    source.hide(Span(source, 1, 6, 1, 12))
    line, first, cells = source.shown(1, 6, 12)
    assert line[first : first + cells] == "**********"


def test_a_secret_over_several_lines_is_hidden_on_each() -> None:
    source = text("api_key: |", "  sk-1", "  sk-2", "port: 1")
    source.hide(Span(source, 1, 10, 3, 7))
    assert [source.shown(line, 1, 2)[0] for line in (1, 2, 3, 4)] == [
        "api_key: **********",
        "**********",
        "**********",
        "port: 1",
    ]


def test_control_characters_do_not_reach_the_terminal() -> None:
    source = text("a: \x1b[31mred\x07\u202e")
    assert source.shown(1, 1, 2)[0] == "a:  [31mred"


def test_a_long_line_is_cut_around_the_place() -> None:
    source = text("x" * 5000 + "HERE" + "y" * 5000)
    line, first, cells = source.shown(1, 5001, 5005)
    assert len(line) < 200
    assert line[first : first + cells] == "HERE"


def test_wide_characters_take_two_cells() -> None:
    source = text("名前: x")
    _, first, cells = source.shown(1, 5, 6)
    assert (first, cells) == (6, 1)


def test_the_end_of_a_long_line_is_cut_before_the_place_only() -> None:
    source = text("x" * 5000 + "HERE")
    line, first, cells = source.shown(1, 5001, 5005)
    assert line.startswith("...")
    assert not line.endswith("...")
    assert line[first : first + cells] == "HERE"


def test_secrets_that_overlap_are_hidden_once() -> None:
    source = text("a: sk-1 sk-2 b")
    for start, end in ((4, 8), (4, 13), (9, 13)):
        source.hide(Span(source, 1, start, 1, end))
    assert source.redacted() == "a: ********** b"


def test_what_is_said_moves_no_cursor_and_has_an_end() -> None:
    assert printable("a\x1b[31m\u202e\udcff\nb") == "a\\x1b[31m\\u202e\\udcff\\nb"
    assert len(printable("k" * 5000)) < 700


def test_a_caret_within_a_secret_covers_the_asterisks() -> None:
    source = text("key: sk-123, x")
    source.hide(Span(source, 1, 6, 1, 12))
    line, first, cells = source.shown(1, 8, 10)
    assert line[first : first + cells] == "**********"
