from __future__ import annotations

import io

import pytest

from stoker.cli import console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    message = "error[C103]: no\n  --> a:1:1\n 1 | x\n   | ^ did you mean"
    for stream, is_painted in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stdout", stream)
        console.print_result(message)
        assert ("\x1b[" in stream.getvalue()) is is_painted


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_who_wants_no_colours_gets_none(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    assert not console.is_coloured(Terminal())
