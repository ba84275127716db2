"""MachineSpec of this machine: cores, memory, CPU flags and the GPU that this process may use.

Linux: /proc and /sys, with the limits of the cgroup, its cpuset and the memory policy. macOS: sysctl and vm_stat.
GPUs: gpu.py. No third-party library.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from ...installation import absent_packages
from ..cpu_kernels import keeps_codes, keeps_twelve_bits
from ..memory_policy import bound_nodes, why_no_policy
from ..open_files import max_open_files
from .gpu import NoGpu, interpreted_gpu, is_interpreting, read_gpu
from .machine_spec import GpuSpec, MachineSpec
from .numa_nodes import read_numa_nodes


def read_machine_spec(root: Path = Path("/"), system: str | None = None) -> MachineSpec:
    """The machine as it is now.

    Args:
        root: where /proc and /sys are, for tests.
        system: as `platform.system()` gives it.
    """
    system = system or platform.system()
    if system == "Darwin":
        total, available = _darwin_memory()
        name, flags = _darwin_cpu()
        cores = os.cpu_count() or 1
    else:
        total, available = _linux_memory(root)
        name, flags = _linux_cpu(root)
        cores = _linux_cores(root)
    gpu, no_gpu = _gpu(total, available)
    machine = MachineSpec(
        system=system,
        architecture=platform.machine(),
        num_cores=cores,
        total_memory_bytes=total,
        available_memory_bytes=available,
        cpu_flags=flags,
        cpu_name=name,
        keeps_twelve_bits=keeps_twelve_bits(),
        keeps_codes=keeps_codes(),
        has_terminal=sys.stderr is not None and sys.stderr.isatty(),
        max_open_files=max_open_files(),
        numa_nodes=() if system == "Darwin" else read_numa_nodes(root),
        no_memory_policy=why_no_policy(),
        gpu=gpu,
        no_gpu=no_gpu,
        absent_packages=absent_packages(),
    )
    if not machine.numa_nodes:
        return machine
    policy = bound_nodes()  # numactl, or `device.numa_bind` of this process
    usable = {
        node.number for node in machine.numa_nodes if node.may_use_memory and (policy is None or node.number in policy)
    }
    return machine.with_memory_of(usable)


def _gpu(total: int, available: int) -> tuple[GpuSpec | None, str]:
    """The GPU, or why there is none. An interpreter's has the memory of the CPU that it runs on."""
    try:
        return read_gpu(), ""
    except NoGpu as error:
        return (interpreted_gpu(total, available) if is_interpreting() else None), str(error)


def _text(path: Path) -> str:
    """The file's text; empty if the file does not exist."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _linux_cpu(root: Path) -> tuple[str, tuple[str, ...]]:
    text = _text(root / "proc/cpuinfo")
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    return name[1].strip() if name else "", tuple(sorted(set(flags[1].split()))) if flags else ()


def _linux_cores(root: Path) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _cgroup_folders(root, "cpu"):
        quota, _, period = _text(folder / "cpu.max").strip().partition(" ")  # cgroup 2
        if not quota:
            quota, period = _text(folder / "cpu.cfs_quota_us").strip(), _text(folder / "cpu.cfs_period_us").strip()
        if quota.isdecimal() and period.isdecimal() and int(period):
            cores = min(cores, max(1, int(quota) // int(period)))  # a fraction of a core counts as none
    return cores


def _linux_memory(root: Path) -> tuple[int, int]:
    """Total and available bytes; a cgroup's limit counts as the total, its page cache as available."""
    fields: dict[str, str] = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _text(root / "proc/meminfo"), re.MULTILINE))
    total = int(fields.get("MemTotal", 0)) * 1024
    available = int(fields.get("MemAvailable", fields.get("MemFree", 0))) * 1024
    for folder in _cgroup_folders(root, "memory"):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        if limit is None or limit >= 1 << 60:  # cgroup 1 writes "no limit" as a huge number
            continue
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
        cached = re.search(r"^(?:total_)?inactive_file (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
        total = min(total, limit)
        available = min(available, max(0, limit - used + (int(cached[1]) if cached else 0)))
    return total, available


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Folders whose limits apply to this process: its own cgroup and all its parents."""
    base = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0":
            top = base
        elif controller in names.split(","):
            top = base / controller
        else:
            continue
        folder = top / path.strip("/")
        while True:  # inside a container the path may be that of the host: folders that do not exist are skipped
            folders.append(folder)
            if folder == top or top not in folder.parents:
                break
            folder = folder.parent
    return folders or [base, base / controller]


def _command(*words: str) -> str:
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=5, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _darwin_memory() -> tuple[int, int]:
    size = _command("sysctl", "-n", "hw.memsize")
    total = int(size) if size.isdecimal() else 0
    report = _command("vm_stat")
    page = re.search(r"page size of (\d+) bytes", report)
    pages = dict(re.findall(r"^Pages ([\w -]+):\s+(\d+)\.$", report, re.MULTILINE))
    free = sum(int(pages.get(kind, 0)) for kind in ("free", "inactive", "speculative", "purgeable"))
    return total, min(total, free * int(page[1])) if page else total


def _darwin_cpu() -> tuple[str, tuple[str, ...]]:
    name = _command("sysctl", "-n", "machdep.cpu.brand_string")
    flags = _command("sysctl", "-n", "machdep.cpu.features", "machdep.cpu.leaf7_features").lower().split()
    if _command("sysctl", "-n", "hw.optional.arm.FEAT_BF16") == "1":
        flags.append("bf16")
    return name, tuple(sorted(set(flags)))
