from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.cli.test_app import ROOT, run

from stoker.cli.collect_env import HIDDEN, environment, variables
from stoker.config.schema.options import options

SECTIONS = ["system", "python", "cpu", "memory", "numa", "gpu", "packages", "variables", "disk"]


def test_it_prints_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "collect-env")
    assert (code, err) == (0, "")
    assert [line.rstrip(":") for line in out.splitlines() if not line.startswith(" ")] == SECTIONS
    assert "GiB" in out


def test_the_same_as_json(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "collect-env", "-o", "json")
    report = json.loads(out)
    assert (code, list(report)) == (0, ["format_version", *SECTIONS])
    assert report["cpu"]["cores_of_this_process"] <= report["cpu"]["cores"]
    assert 0 < report["memory"]["available_bytes"] <= report["memory"]["total_bytes"]
    assert {"stoker", "torch", "pydantic"} <= report["packages"].keys()
    assert run(capsys, "collect-env", "-o", "xml")[0] == 2


def test_no_secret_is_shown():
    secrets = [option.variable for option in options().values() if option.is_secret]
    assert secrets
    env = dict.fromkeys([*secrets, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"], "s3cret")
    assert set(variables(env).values()) == {HIDDEN}
    assert set(variables(env)) == set(env)
    found = variables({"HF_ENDPOINT": "https://me:s3cret@hub", "ENGINE__SERVER__PORT": "1", "HOME": "/root"})
    assert found == {"HF_ENDPOINT": f"https://{HIDDEN}@hub", "ENGINE__SERVER__PORT": "1"}


def test_the_disk_of_a_missing_cache_is_that_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "a" / "b"))
    disk = environment()["disk"]
    assert disk["hub_cache"] == str(tmp_path / "a" / "b")
    assert disk["free_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_no_large_package_is_imported():
    code = "import sys; from stoker.cli.collect_env import run; run('json'); print(*sys.modules, file=sys.stderr)"
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".dev")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert not {"torch", "transformers", "triton", "starlette"} & set(done.stderr.split())
