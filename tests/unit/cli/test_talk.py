"""A conversation on a terminal: commands, texts of several lines, and Ctrl-C."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.cli.test_remote import SEEN, url

from stoker.cli import chat
from stoker.cli.flags.serving import ChatFlags
from stoker.cli.talk import talk

__all__ = ["url"]


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str | BaseException) -> None:
    """Lines of a terminal; an exception is raised instead of a line, and the end follows."""
    rest = iter((*lines, EOFError()))

    def read(prompt: str) -> str:
        line = next(rest)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr(builtins, "input", read)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))


def bodies() -> list[dict[str, Any]]:
    return [body for _, _, body in SEEN]


def test_commands_are_not_sent_to_the_model(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """/help was a message, and nothing could be set."""
    before = len(SEEN)
    lines = ("/help", "/nothing", "/set temperature 0.2", "/set stop x", "/system be brief", "one", "/unset stop")
    type_lines(monkeypatch, *lines, "two", "/clear", "three", "/exit", "four")
    assert chat.run(ChatFlags(url)) == 0
    assert [body["messages"] for body in bodies()[before:]] == [
        [{"role": "system", "content": "be brief"}, *said]
        for said in (
            [{"role": "user", "content": "one"}],
            [
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "you said one"},
                {"role": "user", "content": "two"},
            ],
            [{"role": "user", "content": "three"}],
        )
    ]
    fields = [(body.get("temperature"), body.get("stop")) for body in bodies()[before:]]
    assert fields == [(0.2, "x"), (0.2, None), (0.2, None)]
    err = capsys.readouterr().err
    assert "/set FIELD VALUE" in err
    assert "error: no such command `/nothing`" in err


def test_three_quotation_marks_enclose_several_lines(monkeypatch: pytest.MonkeyPatch):
    seen: list[str] = []

    def answer(text: str) -> Iterator[str]:
        seen.append(text)
        yield "ok"

    type_lines(monkeypatch, '"""first', "", '/second"""', '"""one line"""')
    assert talk(answer, None, "model") == 0
    assert seen == ["first\n\n/second", "one line"]


def test_ctrl_c_stops_the_answer_or_the_line_and_not_the_program(monkeypatch: pytest.MonkeyPatch):
    """It ended the program."""
    seen: list[str] = []

    def answer(text: str) -> Iterator[str]:
        seen.append(text)
        yield "begun"
        if text == "long":
            raise KeyboardInterrupt

    type_lines(monkeypatch, KeyboardInterrupt(), "long", "short")
    assert talk(answer, None, "model") == 0
    assert seen == ["long", "short"]
