"""Verbs that run no model import nothing that runs one: they work without the `engine` extra, and answer soon."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.configuration import NUM_LINES, cases, manifest_text, prepare

from stoker.cli.app import main

HEAVY = ("torch", "transformers", "triton", "numpy", "safetensors", "tokenizers", "huggingface_hub", "starlette", "zmq")
VERBS = [
    ["diff", "deploy.yaml", "--port", "81"],
    ["import", "vllm", "serve", "x", "--port", "81"],
    ["schema", "--check"],
    ["migrate", "deploy.yaml"],
    ["render", "k8s", "deploy.yaml"],
    ["init", "-"],
    ["completion", "bash"],
    ["connect", "codex", "deploy.yaml"],
]
PROGRAM = f"""
import contextlib, io, json, sys
from stoker.cli.app import main
for words in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code or 0
    print(json.dumps([words[0], [name for name in {HEAVY!r} if name in sys.modules], code]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    prepare(folder, 400, 9)
    return folder


def imports_of(commands: list[list[str]]) -> list[tuple[str, list[str], int]]:
    """After each command, in one process: its verb, what is imported that runs a model, the exit code."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(commands), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_what_is_measured_imports_nothing_that_runs_a_model(folder: Path) -> None:
    for verb, heavy, code in imports_of([list(case.arguments) for case in cases(folder)]):
        assert heavy == [], verb
        assert code in (0, 4), verb


@pytest.mark.slow
def test_neither_do_the_other_verbs(folder: Path) -> None:
    commands = [[str(folder / word) if word == "deploy.yaml" else word for word in words] for words in VERBS]
    for verb, heavy, _ in imports_of(commands):
        assert heavy == [], verb


def test_the_manifest_that_is_measured_is_long_and_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text(manifest_text(NUM_LINES))
    assert len(file.read_text().splitlines()) == NUM_LINES
    with pytest.raises(SystemExit) as ended:
        main(["validate", str(file), "-o", "json"])
    assert ended.value.code == 0
    (report,) = json.loads(capsys.readouterr().out)["deployments"]
    assert [finding["severity"] for finding in report["diagnostics"] if finding["severity"] == "error"] == []
