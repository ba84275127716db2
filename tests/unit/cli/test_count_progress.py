"""Progress where there is no terminal: a line at intervals."""

import pytest

from stoker.cli.count_progress import REPORT_INTERVAL_S, count_progress


def test_a_line_says_at_intervals_how_much_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    """A benchmark of 1500 requests printed nothing for 40 seconds."""
    now = 0.0
    with count_progress("requests", 7, clock=lambda: now) as show:
        show(1)
        now = REPORT_INTERVAL_S
        show(2)
        show(3)
        now += REPORT_INTERVAL_S
        show(5)
    assert capsys.readouterr().err == "2 of 7 requests done\n5 of 7 requests done\n"
