"""The whole command with anything on its line, in its files and in its environment: an answer and an exit code."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stoker.cli.app import main

from ..config import oddities

pytestmark = pytest.mark.slow

SOME = settings(max_examples=60, deadline=5_000, suppress_health_check=list(HealthCheck))
FILE_VERBS = [
    ["validate"],
    ["validate", "-o", "json"],
    ["validate", "-o", "sarif"],
    ["validate", "-o", "github", "--deny-warnings"],
    ["config", "--show-origin"],
    ["config", "-o", "json", "--show-origin"],
    ["config", "--sources"],
    ["plan", "-o", "json"],
    ["plan"],
    ["migrate"],
    ["render", "k8s"],
    ["render", "kserve", "--model-uri", "pvc://a/b"],
    ["render", "compose"],
    ["render", "systemd"],
    ["diff", "--port", "1"],
    ["import"],
    ["import", "-o", "json"],
]
WORD_VERBS = [
    ["validate"],
    ["validate", "-o", "json"],
    ["config"],
    ["plan"],
    ["import"],
    ["explain"],
    ["explain", "-o", "json"],
]
EXITS = {0, 1, 2, 3, 4, 78}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in [variable for variable in os.environ if variable.upper().startswith("ENGINE_")]:
        monkeypatch.delenv(variable)
    for name, value in oddities.ENV.items():
        monkeypatch.setenv(name, value)


def run(words: Sequence[str]) -> None:
    """An exit code that is documented, something said, and JSON where it was asked for."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code in EXITS
    assert out.getvalue() or err.getvalue() or ended.value.code == 0
    assert "Traceback" not in err.getvalue()
    if "json" in words and "-o" in words and out.getvalue():
        json.loads(out.getvalue())
    (out.getvalue() + err.getvalue()).encode()


@SOME
@given(oddities.contents, st.sampled_from(FILE_VERBS))
def test_any_file_is_answered(content: bytes, verb: list[str]) -> None:
    Path("deploy.yaml").write_bytes(content)
    words = ["diff", "deploy.yaml", *verb[1:]] if verb[0] == "diff" else [*verb, "deploy.yaml"]
    run(words)


@settings(SOME, max_examples=20)  # each runs a command
@given(oddities.command_words, st.sampled_from(WORD_VERBS))
@example(["--", "-x"], ["validate"])
@example(["\udcff"], ["validate"])
@example(["--port", "\udcff"], ["config"])
@example(["--\udcff", "x"], ["validate", "-o", "json"])
def test_any_words_are_answered(words: list[str], verb: list[str]) -> None:
    Path("deploy.yaml").write_text("model: {model: x}\n")
    run([*verb, "deploy.yaml", *words] if verb[0] in ("validate", "config", "plan") else [*verb, *words])


@SOME
@given(oddities.environments)
def test_any_environment_is_answered(env: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            if "\0" not in name + value and "=" not in name:
                patch.setenv(name, value)
        run(["config", "--model", "x", "--show-origin"])
        run(["validate", "--model", "x", "-o", "json"])
