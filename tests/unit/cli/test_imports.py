"""Verbs that run no model import nothing that runs one: they work without the `engine` extra, and answer soon."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.configuration import NUM_LINES, cases, manifest_text, prepare
from tests.slow_cases import slow

from stoker.cli.app import main

HEAVY = ("torch", "transformers", "triton", "numpy", "safetensors", "tokenizers", "huggingface_hub", "starlette", "zmq")
PROGRAM = f"""
import sys
from stoker.cli.app import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    code = ended.code or 0
print("\\n", [name for name in {HEAVY!r} if name in sys.modules], code)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    prepare(folder, 400, 9)
    return folder


def last_line(*words: str) -> str:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or [done.stderr])[-1].strip()


@pytest.mark.parametrize("index", range(len(cases(Path()))))
def test_what_is_measured_imports_nothing_that_runs_a_model(index: int, folder: Path) -> None:
    assert last_line(*cases(folder)[index].arguments) in ("[] 0", "[] 4")


@pytest.mark.parametrize(
    "words",
    [
        ["diff", "deploy.yaml", "--port", "81"],
        ["import", "vllm", "serve", "x", "--port", "81"],
        slow(["schema", "--check"]),
        slow(["migrate", "deploy.yaml"]),
        slow(["render", "k8s", "deploy.yaml"]),
        slow(["init", "-"]),
        slow(["completion", "bash"]),
        slow(["connect", "codex", "deploy.yaml"]),
    ],
    ids=lambda words: words[0],
)
def test_neither_do_the_other_verbs(words: list[str], folder: Path) -> None:
    given = [str(folder / word) if word == "deploy.yaml" else word for word in words]
    assert last_line(*given).startswith("[] ")


def test_the_manifest_that_is_measured_is_long_and_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text(manifest_text(NUM_LINES))
    assert len(file.read_text().splitlines()) == NUM_LINES
    with pytest.raises(SystemExit) as ended:
        main(["validate", str(file), "-o", "json"])
    assert ended.value.code == 0
    (report,) = json.loads(capsys.readouterr().out)["deployments"]
    assert [finding["severity"] for finding in report["diagnostics"] if finding["severity"] == "error"] == []
