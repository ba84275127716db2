from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.cli.config import run
from stoker.cli.flags.checking import ConfigFlags


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deploy.yaml").write_text("model: {model: Qwen/none}\nserver: {port: 81}\n")


def out(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_an_option_a_section_or_everything_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["deploy.yaml"], [], ConfigFlags(path="server.port")) == 0
    assert out(capsys) == "81\n"
    assert run(["deploy.yaml"], ["--seed", "7"], ConfigFlags(path="device")) == 0
    assert out(capsys).startswith("device:\n  device: cpu\n  self_test: false\n  num_threads: ")
    assert run(["deploy.yaml"], [], ConfigFlags()) == 0
    assert out(capsys).startswith("apiVersion: stoker/v1\n")


def test_minimal_shows_written_values_only(capsys: pytest.CaptureFixture[str]) -> None:
    run(["deploy.yaml"], ["--seed", "7"], ConfigFlags(minimal=True))
    assert out(capsys) == "model:\n  model: Qwen/none\n  seed: 7\nserver:\n  port: 81\n"


def test_json_with_and_without_origins(capsys: pytest.CaptureFixture[str]) -> None:
    run(["deploy.yaml"], [], ConfigFlags(output="json"))
    assert json.loads(out(capsys))["config"]["server"]["port"] == 81
    run(["deploy.yaml"], [], ConfigFlags(output="json", show_origin=True, path="server.port"))
    (port,) = json.loads(out(capsys))["values"]
    assert port["origin"]["text"] == "deploy.yaml:2:16"


def test_hash_prints_the_hash_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["deploy.yaml"], [], ConfigFlags(hash_only=True)) == 0
    assert len(out(capsys)) == len("sha256:\n") + 64


def test_findings_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["deploy.yaml"], ["--host", "0.0.0.0"], ConfigFlags(path="server.host")) == 78
    answer, talk = capsys.readouterr()
    assert answer == "0.0.0.0\n"
    assert "error[R201]" in talk
    assert run(["deploy.yaml"], ["--port", "http"], ConfigFlags()) == 78
    assert capsys.readouterr().out == ""


def test_sources_are_shown_in_order_without_their_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    Path("base.yaml").write_text("preset: latency\nserver:\n  api_key: sk-1\n")
    Path("deploy.yaml").write_text("extends: base.yaml\nmodel: {model: builtin:tiny}\n")
    assert run(["deploy.yaml"], [], ConfigFlags(sources=True)) == 0
    said = out(capsys)
    heads = [line for line in said.splitlines() if line.startswith("# ---")]
    assert heads == ["# --- preset latency", "# --- base.yaml", "# --- deploy.yaml"]
    assert "api_key: **********" in said
    assert "sk-1" not in said


def test_refused_options_are_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    run(["deploy.yaml"], [], ConfigFlags())
    assert "dp_sync_interval" not in out(capsys)
    run(["deploy.yaml"], ["--dp-sync-interval", "16"], ConfigFlags())
    assert "dp_sync_interval: 16" in out(capsys)


def test_a_refused_option_shows_what_this_build_does(capsys: pytest.CaptureFixture[str]) -> None:
    """Once nothing was printed, with exit code 0."""
    assert run(["deploy.yaml"], [], ConfigFlags(path="lora.enable_prompt_adapter")) == 0
    assert out(capsys) == "false\n"
    assert run(["deploy.yaml"], [], ConfigFlags(path="speculative")) == 0
    assert "method: null" in out(capsys)


def test_a_deprecated_option_has_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["deploy.yaml"], [], ConfigFlags(path="cache.swap_space")) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: `cache.swap_space` is deprecated and has no value: a preempted sequence")


def test_without_a_file_the_first_word_may_be_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["server.port"], ["--model", "Qwen/none", "--port", "7"], ConfigFlags()) == 0
    assert out(capsys) == "7\n"
