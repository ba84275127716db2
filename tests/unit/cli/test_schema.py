from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.cli.schema import run


def test_stale_files_are_found_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(check=True) == 1
    assert run(write=True) == 0
    assert run(check=True) == 0
    file = tmp_path / "schemas" / "deployment.schema.json"
    file.write_text(file.read_text().replace("Stoker", "Stocker"))
    assert run(check=True) == 1


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert json.loads(capsys.readouterr().out)["$schema"].endswith("2020-12/schema")
    assert run(draft_07=True) == 0
    assert json.loads(capsys.readouterr().out)["$schema"].endswith("draft-07/schema#")
