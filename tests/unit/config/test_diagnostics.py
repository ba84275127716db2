"""Messages whole, as people see them: compared with tests/golden/config."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.config import ConfigError, load_deployment
from stoker.config.codes import CODES
from stoker.config.diagnostics import as_json, show
from stoker.config.resolve.resolve import examine

from .deployments import MACHINE, load

GOLDEN = Path(__file__).parents[2] / "golden" / "config"

FIVE_MISTAKES = """\
apiVersion: stoker/v1
kind: Deployment
model:
  model: builtin:tiny
  max_model_len: 1.5K
cache:
  block_sise: 16
  max_num_seqs: 4
  gpu_memory_utilization: 1.4
scheduler:
  scheduling_policy: priorty
server:
  port: http
  api_key: ["${NOWHERE:?set NOWHERE}", sk-secret]
"""
BROKEN_RULES = """\
model:
  model: Qwen/Qwen3-0.6B
  max_model_len: 32k
scheduler:
  max_num_batched_tokens: 32
  enable_chunked_prefill: false
server:
  host: 0.0.0.0
"""
CASES = {
    "five_mistakes": (FIVE_MISTAKES, [], {}),
    "other_layers": (
        "model: {model: x}\n",
        ["--max-num-seq", "3", "--block-size", "17", "--port", "1", "--port", "2", "--hf-overrides", "{"],
        {"ENGINE__SERVER__PROT": "1", "ENGINE__SERVER__AUTH": "maybe", "ENGINE_SERVER_PORT": "1"},
    ),
    "duplicate_key": ("model: {model: x}\nserver:\n  port: 1\n  port: 2\n", [], {}),
    "tab": ("model:\n\tmodel: x\n", [], {}),
    "python_object": ("model: {model: x}\nx: !!python/object/apply:os.system [ls]\n", [], {}),
    "no_model": ("server: {port: 1}\n", [], {}),
}


def compare(name: str, text: str) -> None:
    """Delete a golden file and run the test to write it again."""
    file = GOLDEN / name
    if not file.exists():
        file.write_text(text + "\n")
        pytest.fail(f"{file} was missing and is written now; read it and run again")
    assert text + "\n" == file.read_text()


def said(tmp_path: Path, text: str, words: list[str], env: dict[str, str]) -> ConfigError:
    file = tmp_path / "deploy.yaml"
    file.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with pytest.raises(ConfigError) as caught:
            load_deployment(["deploy.yaml"], words, env)
    return caught.value


@pytest.mark.parametrize("name", CASES)
def test_messages_of_loading(name: str, tmp_path: Path) -> None:
    compare(f"{name}.txt", str(said(tmp_path, *CASES[name])))


def test_messages_of_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy.yaml").write_text(BROKEN_RULES)
    examined = examine(load_deployment(["deploy.yaml"], env={}), None, MACHINE)
    compare("rules.txt", show(examined.findings))


def test_findings_for_programs(tmp_path: Path) -> None:
    diagnostics = said(tmp_path, *CASES["five_mistakes"]).diagnostics
    compare("five_mistakes.json", as_json(diagnostics))
    compare("five_mistakes.github", show(diagnostics, "github"))
    first = json.loads(as_json(diagnostics))
    assert first["format_version"] == 1
    assert first["valid"] is False
    assert first["diagnostics"][0]["places"][0]["line"] == 5


def test_a_finding_for_github_is_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        load_deployment([], ["--model", "x", "--dtype", "a%\nb"], {})
    assert "\n" not in caught.value.diagnostics[0].as_github()


def test_every_code_that_is_used_is_explained(tmp_path: Path) -> None:
    for text, words, env in CASES.values():
        assert {finding.code for finding in said(tmp_path, text, words, env).diagnostics} <= set(CODES)


def test_a_warning_is_labelled_as_one(tmp_path: Path) -> None:
    deployment = load(tmp_path, "model: {model: x}\n", env={"ENGINE_SERVER_PORT": "1"})
    assert deployment.warnings[0].as_text().startswith("warning[C117]: ")
