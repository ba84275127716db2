from __future__ import annotations

from stoker.config import Layer
from stoker.config.source.text import SourceText, Span


def text(*lines: str, names: frozenset[str] = frozenset()) -> SourceText:
    return SourceText(Layer.FILE, "deploy.yaml", list(lines), secret_names=names)


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


def test_a_secret_in_a_broken_file_is_known_by_its_key() -> None:
    names = frozenset({"api_key"})
    source = text("server:", "  api_key: [sk-1", "  other:", "  'api_key':", "  # note", "    - sk-2", names=names)
    assert "sk-1" not in source.shown(2, 1, 2)[0]
    assert "sk-2" not in source.shown(6, 1, 2)[0]
    assert source.shown(3, 3, 8)[0] == "  other:"


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
