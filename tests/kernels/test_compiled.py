"""What the interpreter cannot show: launches compile for Hopper, fit there, and wait before they touch memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
SHARED_BYTES = 227 * 1024  # that one program can have on an H100 or H200


@pytest.fixture(scope="module")
def launches() -> list[dict[str, Any]]:
    root = Path(__file__).parents[2]
    paths = [root / ".dev", root, os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_launches"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_every_launch_fits(launches):
    assert len(launches) > 15
    assert all(launch["shared_bytes"] <= SHARED_BYTES for launch in launches)


def test_what_may_start_early_waits_before_it_touches_anything_but_weights(launches):
    for launch in launches:
        assert launch["may_start_early"], launch
        assert launch["waits"], launch
        read = ["ld.global"] if launch["kernel"] == "linear_few.linear_few" else []
        assert launch["before_it_waits"] == read, launch
