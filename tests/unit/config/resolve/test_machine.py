from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.config.resolve import machine
from stoker.config.resolve.machine import read_machine_spec

from ..imitated_nodes import Node
from ..imitated_nodes import machine as imitated

CPUINFO = "processor\t: 0\nmodel name\t: A Fast CPU\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor\t: 1\n"
MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"
KB = 1024


def linux(root: Path, cgroup: str = "", **files: str) -> Path:
    """A /proc and /sys with these files; double underscores in names are slashes."""
    written = {"proc/cpuinfo": CPUINFO, "proc/meminfo": MEMINFO, "proc/self/cgroup": cgroup}
    written |= {f"sys/fs/cgroup/{name.replace('__', '/').replace('_dot_', '.')}": text for name, text in files.items()}
    for name, text in written.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_bare_machine(tmp_path: Path) -> None:
    model_spec = read_machine_spec(linux(tmp_path), "Linux")
    assert (model_spec.total_memory_bytes, model_spec.available_memory_bytes) == (16_000_000 * KB, 8_000_000 * KB)
    assert model_spec.cpu_name == "A Fast CPU"
    assert model_spec.has_bfloat16
    assert 1 <= model_spec.num_cores <= (os.cpu_count() or 1)


def test_limits_of_a_container_count(tmp_path: Path) -> None:
    """The container's own limit, less what it uses, plus the page cache that it can give up."""
    root = linux(
        tmp_path,
        "0::/pod/box\n",
        pod__box__memory_dot_max=str(4000 * KB),
        pod__box__memory_dot_current=str(3000 * KB),
        pod__box__memory_dot_stat=f"anon 1\ninactive_file {500 * KB}\n",
        pod__cpu_dot_max="100000 100000\n",
        pod__memory_dot_max="max\n",
    )
    model_spec = read_machine_spec(root, "Linux")
    assert (model_spec.total_memory_bytes, model_spec.available_memory_bytes, model_spec.num_cores) == (
        4000 * KB,
        1500 * KB,
        1,
    )


def test_old_cgroups_count_too(tmp_path: Path) -> None:
    root = linux(
        tmp_path,
        "5:memory:/box\n4:cpu,cpuacct:/box\n",
        memory__box__memory_dot_limit_in_bytes=str(5000 * KB),
        memory__box__memory_dot_usage_in_bytes=str(1000 * KB),
        memory__memory_dot_limit_in_bytes="9223372036854771712",
        cpu__box__cpu_dot_cfs_quota_us="-1",
        cpu__box__cpu_dot_cfs_period_us="100000",
    )
    model_spec = read_machine_spec(root, "Linux")
    assert (model_spec.total_memory_bytes, model_spec.available_memory_bytes) == (5000 * KB, 4000 * KB)


@pytest.mark.parametrize(("allowed", "expected"), [("0-1", (128, 100)), ("1", (64, 28)), ("0,2", (64, 48))])
def test_memory_outside_of_the_cpuset_does_not_count(allowed: str, expected: tuple[int, int], tmp_path: Path) -> None:
    """With `docker run --cpuset-mems 1` the memory of all nodes counted. Node 2 has none, so that nothing is limited
    without it."""
    nodes = {0: Node("0-1"), 1: Node("2-3", free=20), 2: Node("4-5", 0, 0, 0)}
    root = imitated(tmp_path, nodes, allowed_nodes=allowed)
    (root / "proc/meminfo").write_text(f"MemTotal: {128 << 20} kB\nMemAvailable: {100 << 20} kB\n")
    found = read_machine_spec(root, "Linux")
    assert (found.total_memory_bytes, found.available_memory_bytes) == tuple(size << 30 for size in expected)


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    model_spec = read_machine_spec(tmp_path, "Linux")
    assert (model_spec.available_memory_bytes, model_spec.cpu_flags, model_spec.has_bfloat16) == (0, (), False)


def test_macos_asks_its_own_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "hw.memsize": "17179869184",
        "machdep.cpu.brand_string": "Apple M3",
        "hw.optional.arm.FEAT_BF16": "1",
        "vm_stat": (
            "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n"
            "Pages free:                               1000.\nPages inactive:                           2000.\n"
            "Pages speculative:                         500.\nPages purgeable:                            24.\n"
        ),
    }
    monkeypatch.setattr(machine, "_command", lambda *words: answers.get(words[-1], ""))
    model_spec = read_machine_spec(system="Darwin")
    assert (model_spec.total_memory_bytes, model_spec.available_memory_bytes) == (16 << 30, 3524 * 16384)
    assert model_spec.cpu_name == "Apple M3"
    assert model_spec.has_bfloat16


def test_this_machine_has_cores_and_memory() -> None:
    model_spec = read_machine_spec()
    assert model_spec.num_cores >= 1
    assert 0 < model_spec.available_memory_bytes <= model_spec.total_memory_bytes
