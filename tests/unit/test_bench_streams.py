from __future__ import annotations

import re
import sys

import pytest
from benchmarks import streams

pytestmark = pytest.mark.slow


def test_the_benchmark_of_streams_measures_every_number_of_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It failed at start-up: `resolve` had become the name of a package."""
    monkeypatch.setattr(streams, "NUM_STEPS", 2)
    monkeypatch.setattr(sys, "argv", ["streams", "1", "3"])
    streams.main()
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["rows", "per", "token"]
    assert [re.fullmatch(r" +(\d+) +\d+\.\d", row)[1] for row in rows] == ["1", "3"]
