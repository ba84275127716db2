"""Ranks under Nsight Systems, with a program in its place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.stand_in_nsys import write_nsys

from stoker.engine.cluster.nsight import NsightMissing, under_nsight

PROGRAM = "import os, sys; os.write(int(sys.argv[1]), str(os.getsid(0)).encode()); sys.exit(7)"


def test_a_machine_without_nsys_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        NsightMissing, match=r"`parallel\.ray_workers_use_nsight` needs `nsys`, which is not in the PATH"
    ):
        under_nsight(["python"], 1)


def test_a_command_runs_under_nsys_with_its_descriptors_in_another_session(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    record = write_nsys(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    reader, writer = os.pipe()
    program = [sys.executable, "-c", PROGRAM, str(writer)]
    run = subprocess.run(under_nsight(program, 3), pass_fds=[writer], check=False, timeout=120)
    os.close(writer)
    assert run.returncode == 7
    assert int(os.read(reader, 100)) != os.getsid(0)
    os.close(reader)
    folder = tmp_path / f"stoker-nsight-{os.getuid()}"
    assert json.loads(record.read_text()) == ["profile", "--trace=osrt,nvtx", f"--output={folder}/rank-3-%p", *program]
    (report,) = folder.glob("rank-3-*.nsys-rep")
    assert report.read_text() == "7"
