"""Nothing that can be written makes reading a deployment stumble: it loads, or there are findings with known codes.

Every finding can be shown in each of the four forms, whatever the text at its place is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.slow_cases import slow_but

from stoker.config import ConfigError
from stoker.config.codes import CODES
from stoker.config.diagnostics import Diagnostic, as_json, show
from stoker.config.examine import report_on
from stoker.config.presets import preset_names
from stoker.config.resolve.rules import RULES
from stoker.config.sarif import as_sarif
from stoker.config.source.interpolate import InterpolationError, interpolate

from . import oddities
from .deployments import MACHINE

KNOWN = {*CODES, *(rule.id for rule in RULES)}
FEW = settings(max_examples=150, deadline=5_000, suppress_health_check=list(HealthCheck))


def check_findings(findings: Sequence[Diagnostic]) -> None:
    assert {finding.code for finding in findings} <= KNOWN
    for finding in findings:
        assert not set("\x00\x1b\r\u202e\u2028\x85") & set(finding.as_text()), finding.as_text()
        assert "\n" not in finding.as_github()
    assert show(findings, "text").startswith(("error[", "warning["))
    assert len(show(findings, "github").split("\n")) == len(findings)
    assert len(json.loads(as_json(findings))["diagnostics"]) == len(findings)
    run = json.loads(as_sarif(findings))["runs"][0]
    assert len(run["results"]) == len(findings)
    for result in run["results"]:
        for place in result.get("locations", []):
            region = place["physicalLocation"]["region"]
            assert region["startLine"] >= 1
            assert region["endColumn"] >= region["startColumn"] >= 1
    as_sarif(findings).encode()
    show(findings).encode()


def read(files: Sequence[Path], words: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
    findings = report_on(files, words, MACHINE, env={} if env is None else env).findings
    if findings:
        check_findings(findings)


@FEW
@pytest.mark.slow
@given(oddities.contents)
@example(b"model: {model: x}\nserver: {port: &a [*a]}")
@example(b"\xff\xfe")
@example(b"a: \xf0\x9f\x92")
@example(b"? [a]\n: b")
@example(b"? - a\n: b")
def test_no_bytes_make_the_loader_stumble(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_bytes(content)
    read([file], env=oddities.ENV)


@FEW
@pytest.mark.slow
@pytest.mark.slow
@given(st.text("${}:-?aB1_ \n", max_size=30) | st.lists(st.sampled_from(oddities.FORMS)).map("".join))
def test_a_form_is_filled_in_or_its_place_is_reported(text: str) -> None:
    error: InterpolationError | None = None
    filled = text
    try:
        filled = interpolate(text, {"a": "$x", "B": "", "_": "${a}"})
    except InterpolationError as caught:
        error = caught
    if error is not None:
        assert error.code in KNOWN
        assert 0 <= error.start < error.end <= len(text)
    elif "$" not in text:
        assert filled == text


@settings(FEW, max_examples=150)
@given(oddities.command_words)
@example(["-O", "-O", "{"])
@example(["--hf-overrides.a.b+=1", "--hf-overrides.a=2", "--hf-overrides!", "--hf-overrides.a.b.c", "3"])
def test_no_words_make_the_command_line_stumble(words: list[str]) -> None:
    read([], ["--model", "x", *words])


@pytest.mark.slow
@settings(FEW, max_examples=300)
@given(oddities.environments)
def test_no_variables_make_the_environment_stumble(env: dict[str, str]) -> None:
    read([], ["--model", "x"], env)


@FEW
@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from(["a", "b", "c", "d", "./a", "../x", "", "${SET}"]))),
        max_size=4,
    )
)
def test_files_that_extend_each_other_in_any_way_come_to_an_end(
    tmp_path: Path, edges: list[tuple[str, list[str]]]
) -> None:
    for name in "abc":
        (tmp_path / name).write_text("model: {model: x}\n")
    for name, targets in edges:
        (tmp_path / name).write_text(f"extends: {json.dumps(targets)}\nmodel: {{model: x}}\n")
    read([tmp_path / "a", tmp_path / "b"], env={"SET": "c"})


@FEW
@given(st.sampled_from(preset_names()) | oddities.words, st.sampled_from(["file", "flag", "variable"]))
def test_a_preset_is_known_or_reported(tmp_path: Path, name: str, layer: str) -> None:
    file = tmp_path / "deploy.yaml"
    written = {"model": {"model": "x"}} | ({"preset": name} if layer == "file" else {})
    file.write_text(json.dumps(written))
    read(
        [file], [f"--preset={name}"] if layer == "flag" else [], {"ENGINE__PRESET": name} if layer == "variable" else {}
    )


LARGE: dict[str, Callable[[], str]] = {
    "unknown keys": lambda: "server:\n" + "".join(f"  prot_{index}: 1\n" for index in range(30_000)),
    "unknown keys on one line": lambda: json.dumps({"server": {f"prot_{index}": 1 for index in range(30_000)}}),
    "wrong values": lambda: json.dumps({"model": {"model": "x"}, "server": {"api_key": [[] for _ in range(60_000)]}}),
    "duplicates": lambda: "model: {model: x}\nserver:\n" + "  port: 1\n" * 40_000,
    "one long key": lambda: f"{'k' * 3_000_000}: 1\n",
    "one long value": lambda: f"server: {{port: {'1' * 3_000_000}}}\n",
    "one long choice": lambda: f"scheduler: {{scheduling_policy: {'f' * 3_000_000}}}\n",
    "brackets": lambda: "[" * 1_000_000,
    "braces": lambda: "model: " + "{a: " * 500_000,
    "bars": lambda: "- " * 1_000_000,
    "aliases": lambda: "x: &a [1]\ny: [" + "*a," * 99_000 + "]",
    "laughs": lambda: (
        "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
    ),
    "merges": lambda: (
        "x-a: &a {" + ", ".join(f"k{i}: 1" for i in range(300)) + "}\nx-b: {<<: [" + "*a, " * 300 + "]}\n"
    ),
    "forms": lambda: "model: {model: '" + "${A:-" * 200_000 + "'}",
    "closed forms": lambda: "model: {model: '" + "${A:-" * 200_000 + "}" * 200_000 + "'}",
    "dollars": lambda: "model: {model: '" + "${A:-x}$$" * 300_000 + "'}",
    "quotes": lambda: "'" * 4_000_000,
    "anchors": lambda: "".join(f"x-{i}: &a{i} 1\n" for i in range(90_000)),
    "secrets": lambda: "model: {model: x}\nserver:\n  auth: key\n  api_key:\n" + "  - sk-1\n" * 60_000,
    "tabs": lambda: "a:\n" + "\t" * 3_000_000,
    "combining": lambda: f"server: {{port: '{chr(0x301) * 1_000_000}'}}",
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", slow_but(LARGE, "one long value", "braces", "laughs", "merges", "forms"))
def test_large_files_are_answered_soon(name: str, tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text(LARGE[name]())
    findings = report_on([file], [], MACHINE, env={}).findings
    if findings:
        check_findings(findings)
    assert len(show(findings)) < 200_000


@pytest.mark.timeout(30)
def test_files_that_extend_twice_each_are_not_read_without_end(tmp_path: Path) -> None:
    """Thirty of them stand for a thousand million readings."""
    for index in range(30):
        (tmp_path / f"{index}.yaml").write_text(f"extends: [{index + 1}.yaml, {index + 1}.yaml]\nmodel: {{model: x}}\n")
    (tmp_path / "30.yaml").write_text("model: {model: x}\n")
    assert [finding.code for finding in report_on([tmp_path / "0.yaml"], [], MACHINE, env={}).findings] == ["C109"]


def test_a_hundred_findings_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    findings = report_on([], [f"--nothing-{index}" for index in range(130)], MACHINE, env={}).findings
    assert len(findings) == 101
    assert findings[-1].message == "30 more findings are not shown"
    assert ConfigError(findings).exit_code == 2
