from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from stoker.cli.startup_view import StartupView


def ticking() -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += 1.0


def test_without_a_terminal_each_phase_is_a_line_when_it_ends(capsys: pytest.CaptureFixture[str]):
    clock = ticking()
    with StartupView("stoker 1", is_live=False, clock=lambda: next(clock)) as view:
        view.begin("address")
        view.note("127.0.0.1:8000")
        view.begin("engine")
        view.part("weights")
        view.part("warm-up")
        view.close()
    assert capsys.readouterr() == (
        "",
        "stoker 1\n"
        "  address          1.00 s  127.0.0.1:8000\n"
        "    weights          1.00 s\n"
        "    warm-up          1.00 s\n"
        "  engine           5.00 s\n",
    )


@pytest.mark.effect("load.use_tqdm_on_load")
def test_progress_is_shown_until_a_part_ends():
    view = StartupView("stoker 1", is_live=True, clock=lambda: 0.0)
    view.begin("engine")
    view.part("weights")
    view.part("weights: 42 %")

    def rendered() -> str:
        console = Console(file=io.StringIO(), width=80)
        console.print(view._tree())
        return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    assert "weights          0.00 s  42 %" in rendered()
    view.part("warm-up")
    assert "%" not in rendered()


def test_a_failure_ends_the_phase_it_came_from(capsys: pytest.CaptureFixture[str]):
    clock = ticking()

    def start() -> None:
        with StartupView("stoker 1", is_live=False, clock=lambda: next(clock)) as view:
            view.begin("model files")
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        start()
    assert capsys.readouterr().err == "stoker 1\n  model files      1.00 s\n"
