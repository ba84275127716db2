"""Commands that are started on a node of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.config.memory_policy import why_no_policy

ROOT = Path(__file__).parents[4]
CPU = str(min(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else "0"
pytestmark = [
    pytest.mark.skipif(not Path("/sys/devices/system/node/node0").exists(), reason="the system has no NUMA nodes"),
    pytest.mark.skipif(bool(why_no_policy()), reason="the kernel allows no memory policy"),
]


def started(node: str, cpus: str, *command: str, setup: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / ".dev"), str(ROOT)])}
    begin = [
        sys.executable,
        "-c",
        f"{setup}; from stoker.engine.host.on_node import main; raise SystemExit(main({[node, cpus, *command]}))",
    ]
    words = begin if setup else [sys.executable, "-m", "stoker.engine.host.on_node", node, cpus, *command]
    return subprocess.run(words, env=environment, text=True, capture_output=True, check=False)


def test_all_threads_and_all_memory_of_a_command_are_bound() -> None:
    script = """
import os, numpy
from pathlib import Path
print({os.sched_getaffinity(int(thread)) == {CPU} for thread in os.listdir("/proc/self/task")})
lines = Path("/proc/self/numa_maps").read_text().splitlines()
print({line.split()[1] for line in lines if "heap" in line or "stack" in line})
"""
    done = started("0", CPU, sys.executable, "-c", script.replace("CPU", CPU))
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, ["{True}", "{'bind:0'}"], "")


@pytest.mark.parametrize(
    ("node", "cpus", "reason"),
    [("1000", CPU, "Invalid argument"), ("0", "8191", "Invalid argument")],
)
def test_what_the_kernel_refuses_ends_the_start(node: str, cpus: str, reason: str) -> None:
    done = started(node, cpus, sys.executable, "-c", "print('started')")
    said = f"error: cannot start on NUMA node {node} with the cores {cpus}: {reason}\n"
    assert (done.returncode, done.stdout, done.stderr) == (4, "", said)


def test_a_container_that_forbids_the_call_ends_the_start() -> None:
    forbids = (
        "import platform; from tests.seccomp import forbid; from stoker.config.memory_policy import _NUMBERS; "
        "forbid(_NUMBERS[platform.machine()]['set'])"
    )
    done = started("0", CPU, sys.executable, "-c", "print('started')", setup=forbids)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.endswith(": Operation not permitted\n")
