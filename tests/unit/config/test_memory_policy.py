"""The kernel's own answers, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.config.memory_policy import _NUMBERS, why_no_policy

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.skipif(not Path("/sys/devices/system/node/node0").exists(), reason="the system has no NUMA nodes"),
    pytest.mark.skipif(bool(why_no_policy()), reason="the kernel allows no memory policy"),
]
IMPORTS = """
import platform, re, sys, threading
from pathlib import Path
from stoker.config.memory_policy import _NUMBERS, bind_memory, bound_nodes, why_no_policy
"""


def printed(script: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / ".dev"), str(ROOT)])}
    command = [sys.executable, "-c", IMPORTS + script]
    return subprocess.run(command, env=environment, text=True, capture_output=True, check=True).stdout.strip()


def test_a_thread_is_bound_and_so_are_those_that_it_starts() -> None:
    script = """
print(bound_nodes())
bind_memory(0)
thread = threading.Thread(target=lambda: print(bound_nodes()))
thread.start()
thread.join()
memory = bytearray(1 << 24)
policies = {line.split()[1] for line in Path("/proc/self/numa_maps").read_text().splitlines()}
print("bind:0" in policies)
"""
    assert printed(script).splitlines() == ["None", "{0}", "True"]


def test_a_policy_with_automatic_balancing_is_a_limit_too() -> None:
    """As of `numactl --balancing --membind=0`: its flag was taken for a part of the mode."""
    script = """
from unittest.mock import patch
with patch("stoker.config.memory_policy._BIND", 2 | 1 << 13):
    try: bind_memory(0)
    except OSError: print("unknown flag")
print(bound_nodes())
"""
    if (found := printed(script)) == "unknown flag\nNone":
        pytest.skip("Linux before 5.12")
    assert found == "{0}"


def test_a_node_that_does_not_exist_is_refused() -> None:
    script = "\ntry: bind_memory(1023)\nexcept OSError as error: print(error.strerror, bound_nodes())"
    assert printed(script) == "Invalid argument None"


def test_asking_changes_nothing() -> None:
    assert printed("bind_memory(0); print(repr(why_no_policy()), bound_nodes())") == "'' {0}"


def test_a_container_that_forbids_the_calls_is_noticed() -> None:
    assert set(_NUMBERS) >= {"x86_64", "aarch64"}
    script = """
from tests.seccomp import forbid
forbid(*_NUMBERS[platform.machine()].values())
print(why_no_policy(), bound_nodes())
"""
    assert printed(script) == "operation not permitted None"
