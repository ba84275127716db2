from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from stoker.config import MachineSpec, load_deployment
from stoker.config.digest import digest
from stoker.config.effective import as_manifest, as_records, as_tree, effective_values, select
from stoker.config.examine import report_on

from .deployments import MACHINE
from .model_files import write_model


def values(folder: Path, *words: str, env: dict[str, str] | None = None) -> list:  # type: ignore[type-arg]
    report = report_on([], ["--model", str(write_model(folder)), *words], MACHINE, env or {})
    assert report.deployment is not None
    assert report.decisions is not None
    return effective_values(report.deployment, report.decisions)


def test_the_yaml_says_the_same_again(tmp_path: Path) -> None:
    words = ["--hf-overrides", '{"a b": {"c": [1, "x: y"]}, "d": {}}', "--root-path", "/llm", "--drain-timeout", "90s"]
    found = values(tmp_path, *words, "--served-model-name", "007", "yes")
    text = as_manifest(found, with_origin=True)
    file = tmp_path / "again.yaml"
    file.write_text(text)
    again = load_deployment([file], env={})
    assert again.config.server.drain_timeout == 90
    assert again.model.hf_overrides == {"a b": {"c": [1, "x: y"]}, "d": {}}
    assert again.model.served_model_name == ("007", "yes")
    assert yaml.safe_load(as_manifest(found))["cache"]["block_size"] == 16


def test_origins_stand_beside_the_values(tmp_path: Path) -> None:
    found = values(tmp_path, "--port", "3", "--hf-overrides.a", "1", env={"ENGINE__SERVER__PORT": "2"})
    lines = as_manifest(found, with_origin=True).splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("  port: 3"))
    assert lines[at].endswith("# command line --port")
    assert lines[at + 1].strip() == "#   instead of 2 from environment ENGINE__SERVER__PORT"
    assert any(line.startswith("    a: 1") and line.endswith("# command line --hf-overrides.a") for line in lines)
    assert any("auto, R086: the block size for cpu" in line for line in lines)
    (port,) = [record for record in as_records(found) if record["path"] == "server.port"]
    assert (port["value"], port["origin"]["layer"]) == (3, "command line")
    assert [old["value"] for old in port["overridden"]] == [2]


def test_parts_are_selected_by_path(tmp_path: Path) -> None:
    found = values(tmp_path)
    assert set(as_tree(select(found, "cache"))) == {"cache"}
    assert as_tree(select(found, "cache.block_size")) == {"cache": {"block_size": 16}}
    assert select(found, "cache.nothing") == []


def test_what_waits_for_the_model_is_reported() -> None:
    report = report_on([], ["--model", "Qwen/none"], MACHINE, {})
    assert report.deployment is not None
    assert report.decisions is not None
    assert report.model_missing == "Qwen/none"
    text = as_manifest(effective_values(report.deployment, report.decisions), with_origin=True)
    assert "dtype: auto" in text
    assert "# auto, known once the model is here" in text


def test_the_hash_is_that_of_what_was_written(tmp_path: Path) -> None:
    def of(*words: str) -> str:
        return digest(load_deployment([], ["--model", "x", *words], {}))

    assert of() == of("--port", "8000")
    assert of() != of("--port", "8001")
    assert of("--api-key", "a") == of("--api-key", "b")
    assert of().startswith("sha256:")


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_what_only_this_machine_lacks_is_a_warning_elsewhere(tmp_path: Path, is_elsewhere: bool) -> None:
    small: MachineSpec = MACHINE.model_copy(update={"available_memory_bytes": 1000})
    words = ["--model", str(write_model(tmp_path))]
    report = report_on([], words, small, {}, is_elsewhere=is_elsewhere)
    assert [(finding.code, finding.severity) for finding in report.findings] == [
        ("R204", "warning" if is_elsewhere else "error")
    ]
    assert report.exit_code == (0 if is_elsewhere else 4)


def test_damaged_model_files_are_a_finding_with_a_place(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"short")
    file = tmp_path / "deploy.yaml"
    file.write_text("model: {model: ./model}\n")
    report = report_on([file], [], MACHINE, {})
    (finding,) = report.findings
    assert finding.code == "M303"
    assert str(finding.labels[0].span).endswith("deploy.yaml:1:16")
    assert report.exit_code == 3


def test_the_hash_does_not_depend_on_the_file_of_a_value(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("model: {model: x}\nserver: {port: 3}\n")
    (tmp_path / "deploy.yaml").write_text("extends: base.yaml\n")
    hashes = {digest(load_deployment([tmp_path / name], (), {})) for name in ("base.yaml", "deploy.yaml")}
    assert len(hashes) == 1
