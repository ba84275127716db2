from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.cli.validate import run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "good.yaml": "model: {model: Qwen/none}\n",
        "bad.yaml": "model: {modle: Qwen/none}\n",
        "warned.yaml": "model: {model: Qwen/none, max_logprobs: -1}\n",
        "missing.yaml": "model: {model: ./nowhere}\n",
        "over.yaml": "server: {port: http}\n",
    }.items():
        Path(name).write_text(text)


@pytest.mark.parametrize(
    ("files", "code"),
    [
        (["good.yaml"], 0),
        (["warned.yaml"], 0),
        (["bad.yaml"], 78),
        (["missing.yaml"], 3),
        (["good.yaml", "bad.yaml"], 78),
        (["missing.yaml", "bad.yaml"], 78),
        (["nowhere.yaml"], 78),
    ],
)
def test_the_exit_code_is_the_worst_one(files: list[str], code: int) -> None:
    assert run(files, [], []) == code


def test_warnings_can_be_denied() -> None:
    assert run(["warned.yaml"], [], [], deny_warnings=True) == 78
    assert run(["good.yaml"], [], [], deny_warnings=True) == 0


def test_each_file_is_a_deployment_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    run(["good.yaml", "bad.yaml"], [], [])
    out = capsys.readouterr().out
    assert "good.yaml: valid\n" in out
    assert "bad.yaml: invalid, 1 error\n" in out
    assert "Qwen/none is not on this machine: rules that need its files were not checked" in out


def test_overlays_and_overrides_lie_on_top(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["good.yaml"], ["over.yaml"], []) == 78
    assert "good.yaml + over.yaml: invalid, 1 error" in capsys.readouterr().out
    assert run(["good.yaml"], [], ["--port", "http"]) == 78
    assert run([], [], ["--model", "Qwen/none"]) == 0


def test_json_tells_everything(capsys: pytest.CaptureFixture[str]) -> None:
    run(["good.yaml", "bad.yaml"], [], [], output="json")
    answer = json.loads(capsys.readouterr().out)
    assert answer["format_version"] == 1
    assert answer["valid"] is False
    good, bad = answer["deployments"]
    assert (good["valid"], good["model_missing"]) == (True, "Qwen/none")
    assert bad["diagnostics"][0]["places"][0]["place"] == "bad.yaml:1:9"


def test_github_lines(capsys: pytest.CaptureFixture[str]) -> None:
    run(["bad.yaml", "warned.yaml"], [], [], output="github")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("::error title=C103,file=bad.yaml,line=1,col=9,endColumn=14::no such key `model.modle`")
    assert lines[1].startswith("::warning title=R057,file=warned.yaml,line=1,")
