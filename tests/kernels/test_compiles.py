"""Every GPU kernel goes through Triton's compiler, which needs no GPU, at the widths of real models.

In a process of its own: this one runs kernels in the interpreter, which accepts more than the compiler does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "src/engine/kernels/gpu"
MOST_STACK_BYTES = {"prefill_attention._prefill": 128}  # of a head of 256: sums take half of all registers there are


def run(*options: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "tools.kernels", "--json", *options]
    return json.loads(subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True).stdout)


@pytest.fixture(scope="module")
def hopper() -> dict[str, Any]:
    return run("--architecture", "90")


def of(results: dict[str, Any], kernel: str, case: str = "") -> list[dict[str, Any]]:
    found = [each for each in results["compiled"] if each["kernel"] == kernel and re.search(case, each["case"])]
    assert found, f"no case {case} compiled {kernel}"
    return found


def test_every_kernel_compiles(hopper: dict[str, Any]):
    assert not hopper["errors"], "\n".join(f"{case}: {error}" for case, error in hopper["errors"].items())
    assert {each["kernel"] for each in hopper["compiled"]} == kernels()


def kernels() -> set[str]:
    """module.function of whatever is compiled by itself: functions that other kernels call are compiled with them."""
    sources = {path.stem: path.read_text() for path in KERNELS.glob("*.py")}
    called = {name for text in sources.values() for name in re.findall(r"(?<!def )\b(\w+)\(", text)}
    jitted = re.compile(r"^@triton\.jit(?:\([^)]*\))?\ndef (\w+)", re.MULTILINE)
    return {
        f"{module}.{name}" for module, text in sources.items() for name in jitted.findall(text) if name not in called
    }
