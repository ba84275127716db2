"""One deployment of three files with twelve errors of twelve kinds: all are reported in one run, in every form.

The output is compared whole with tests/golden/config; delete a file there and run this to write it again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from stoker.config import ConfigError, load_deployment
from stoker.config.diagnostics import Diagnostic, as_json, show
from stoker.config.examine import report_on
from stoker.config.sarif import as_sarif

from .deployments import MACHINE
from .test_diagnostics import GOLDEN, compare

FILES = {
    "base.yaml": """\
# what all teams share
model:
  model: builtin:tiny
  max_model_len: 1.5K
cache:
  block_sise: 16
  max_num_seqs: 4
  gpu_memory_utilization: 1.4
scheduler:
  scheduling_policy: priorty
""",
    "team.yaml": """\
model:
  seed: ${TEAM_SEED}
  revision: !!binary bWFpbg==
parallel: {dp_sync_interval: 2}
server:
  port: 8000
  port: 8001
  api_key:
    - {env: TEAM_KEY}
    - sk-secret
""",
    "deploy.yaml": """\
extends: [base.yaml, team.yaml, nowhere.yaml]
preset: latensy
server:
  enable_log_requests: true
  disable_log_requests: true
  drain_timeout: soon
""",
}
CODES = {
    "C101": "a file that is not there",
    "C103": "a key that no option has, and one of another section",
    "C104": "a fraction of a binary unit, and a text for a duration",
    "C106": "a duplicate key",
    "C107": "a word that is not a choice, and a number out of range",
    "C110": "a tag",
    "C111": "a variable that is not set",
    "C113": "a secret that is not there",
    "C115": "a preset that is misspelt",
    "C116": "a variable that no option has",
    "C118": "an option that this build refuses",
    "C120": "a flag that is misspelt",
    "C123": "a deprecated option",
    "C124": "which contradicts the one of today",
}


@pytest.fixture
def findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Diagnostic]:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_deployment(["deploy.yaml"], ["--max-num-seq", "4"], {"ENGINE__SERVER__PROT": "1"})
    return list(caught.value.diagnostics)


def test_every_kind_of_mistake_is_reported_in_one_run(findings: list[Diagnostic]) -> None:
    assert {finding.code for finding in findings} == set(CODES)


def test_as_text(findings: list[Diagnostic]) -> None:
    compare("twelve_mistakes.txt", show(findings))


def test_as_json(findings: list[Diagnostic]) -> None:
    compare("twelve_mistakes.json", as_json(findings))


def test_as_lines_for_github(findings: list[Diagnostic]) -> None:
    compare("twelve_mistakes.github", show(findings, "github"))


def test_as_sarif(findings: list[Diagnostic], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.config.sarif.__version__", "0.0.0")
    text = as_sarif(findings)
    compare("twelve_mistakes.sarif", text)
    check_sarif(json.loads(text))


def check_sarif(log: Any) -> None:
    """The part of the standard's schema that we use, closed: whatever is written must be in it."""
    schema = json.loads((GOLDEN / "sarif.schema.json").read_text())
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(log)
    for run in log["runs"]:
        rules = run["tool"]["driver"]["rules"]
        assert [rules[result["ruleIndex"]]["id"] for result in run["results"]] == [r["ruleId"] for r in run["results"]]


def test_a_rule_points_at_every_file_that_it_binds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules are checked once everything can be read, so they have a run of their own."""
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text("model: {model: Qwen/none, max_model_len: 32k}\nserver: {host: 0.0.0.0}\n")
    Path("team.yaml").write_text("scheduler:\n  max_num_batched_tokens: 32\n")
    Path("deploy.yaml").write_text("extends: [base.yaml, team.yaml]\nscheduler: {enable_chunked_prefill: false}\n")
    report = report_on(["deploy.yaml"], ["--auth", "key"], MACHINE, {})
    assert len(report.errors) >= 2
    compare("rules_across_files.txt", show(report.findings))
    check_sarif(json.loads(as_sarif(report.findings)))
