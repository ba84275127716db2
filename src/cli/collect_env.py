"""`engine collect-env`: what a bug report should contain about the machine, the installation and the environment.

Nothing large is imported: versions come from package metadata, the GPU from the driver's files.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from .. import __version__
from ..config.cpu_features import NoKernels, choose_level, this_cpu, wanted_level
from ..config.cpu_list import format_cpus
from ..config.diagnostics import FORMAT_VERSION
from ..config.resolve.machine import read_machine_spec
from ..config.resolve.numa_nodes import NumaNode
from ..config.schema.types import format_about
from .console import print_result

PREFIXES = (
    *("ENGINE__", "STOKER_", "HF_", "HUGGING", "TRANSFORMERS_", "TORCH", "TRITON_"),
    *("CUDA_", "NVIDIA_", "OMP_", "GOMP_", "MKL_"),
)
NAMES = {"CC", "CXX", "LD_LIBRARY_PATH", "LD_PRELOAD", "XDG_CACHE_HOME"}
FLAGS = (
    *("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "bf16", "sve"),
)
HIDDEN = "(hidden)"
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH")
_USER = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")
_PACKAGES = ("torch", "transformers", "triton", "tokenizers", "safetensors", "huggingface-hub", "numpy", "pydantic")


def run(output: Literal["text", "json"]) -> int:
    sections = environment()
    if output == "json":
        print_result(json.dumps({"format_version": FORMAT_VERSION, **sections}, indent=2))
        return 0
    for section, values in sections.items():
        print_result(f"{section}:")
        width = max(map(len, values), default=0)
        for name, value in values.items():
            print_result(f"  {name:<{width}}  {_text(name, value)}")
    return 0


def environment() -> dict[str, dict[str, Any]]:
    """Environment by section. Sizes are in bytes."""
    machine = read_machine_spec()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "system": {
            "os": _system_name(),
            "kernel": platform.release(),
            "architecture": machine.architecture,
            "libc": " ".join(platform.libc_ver()),
            "open_files": f"{soft} of {hard}",
        },
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
        },
        "cpu": {
            "name": machine.cpu_name,
            "cores": os.cpu_count(),
            "cores_of_this_process": machine.num_cores,
            "flags": [flag for flag in FLAGS if flag in machine.cpu_flags],
            "kernels": _kernels(),
        },
        "memory": {"total_bytes": machine.total_memory_bytes, "available_bytes": machine.available_memory_bytes},
        "numa": {
            **{f"node {node.number}": _node(node) for node in machine.numa_nodes},
            "binding": machine.no_memory_policy or "allowed",
        },
        "gpu": _gpus(),
        "packages": packages(),
        "variables": variables(os.environ),
        "disk": {"hub_cache": _hub_cache(os.environ), **_disk(_hub_cache(os.environ))},
    }


def _node(node: NumaNode) -> str:
    cores = f"cores {format_cpus(node.usable_cpus)}" if node.cores else "no cores of this process"
    memory = f"{format_about(node.total_memory_bytes)}, {format_about(node.available_memory_bytes)} free"
    where = "" if node.may_use_memory else ", outside of the cpuset of this process"
    return f"{cores}; {memory}{where}"


def packages() -> dict[str, str | None]:
    """Version of this package and of its dependencies; None if one is not installed. Nothing is imported."""
    try:
        required = importlib.metadata.requires("stoker") or []
    except importlib.metadata.PackageNotFoundError:
        required = list(_PACKAGES)
    development = re.compile(r"extra == .dev.")
    wanted = (_REQUIREMENT.match(text) for text in required if not development.search(text))
    names = {name[0].lower() for name in wanted if name}
    return {"stoker": __version__, **{name: _version(name) for name in sorted(names - {"stoker"})}}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Relevant variables, with secrets and passwords in URLs hidden."""
    names = sorted(name for name in env if name.startswith(PREFIXES) or name in NAMES)
    return {name: HIDDEN if _SECRET.search(name.upper()) else _USER.sub(HIDDEN, env[name]) for name in names}


def cpu_line() -> str:
    """The processor in one line, for the heading of a measurement."""
    machine = read_machine_spec()
    return " ".join([machine.cpu_name, *(flag for flag in FLAGS if flag in machine.cpu_flags)])


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.mac_ver()[0]}".strip()


def _kernels() -> str:
    try:
        level, reason = choose_level(wanted_level(), this_cpu())
        return f"{level.name}: {reason}"
    except (NoKernels, ValueError) as error:
        return f"torch: {error}"


def _gpus(root: Path = Path("/proc/driver/nvidia")) -> dict[str, Any]:
    """Names of NVIDIA GPUs and the version of the driver, from the driver's files."""
    try:
        driver = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", (root / "version").read_text())
        found = sorted(path.read_text() for path in (root / "gpus").glob("*/information"))
    except OSError:
        return {"devices": []}
    names = [match[1].strip() for text in found if (match := re.search(r"^Model:\s*(.+)$", text, re.MULTILINE))]
    return {"driver": driver[1] if driver else None, "devices": names}


def _hub_cache(env: Mapping[str, str]) -> str:
    home = env.get("HF_HOME") or str(Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return os.path.expanduser(env.get("HF_HUB_CACHE") or str(Path(home) / "hub"))


def _disk(folder: str) -> dict[str, Any]:
    """Size of the file system that contains the folder, which may not exist yet."""
    path = Path(folder).absolute()
    while not path.exists():
        path = path.parent
    usage = shutil.disk_usage(path)
    return {"total_bytes": usage.total, "free_bytes": usage.free}


def _text(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return " ".join(value) or "none"
    return format_about(value) if name.endswith("_bytes") else str(value)
