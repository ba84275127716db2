"""Instruction sets of x86-64 CPUs that kernels are compiled for, and the choice for this CPU or by STOKER_CPU_FEATURES.

A level is a set of compiler flags. The library of a level contains every kernel in the form that is best with these
instructions; it runs on any CPU that has them, whatever machine compiled it. Standard library only: the build hook of
the wheel imports this file without any dependency.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "STOKER_CPU_FEATURES"
COMPILERS = ("c++", "g++", "clang++")
_CPUINFO = Path("/proc/cpuinfo")
_AVX2 = ("avx2", "fma")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq")
_AVX512_FLAGS = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma")


@dataclass(frozen=True, slots=True)
class Level:
    """needs: flags as /proc/cpuinfo spells them; compiler_flags: what lets the compiler use them."""

    name: str
    needs: tuple[str, ...]
    compiler_flags: tuple[str, ...]

    def multiplies(self, dtype: str) -> bool:
        """Whether the library multiplies matrices of this type: for float32, torch is faster than plain C++."""
        return dtype == "bfloat16" or (dtype == "float32" and self.name != "portable")

    @property
    def has_twelve_bits(self) -> bool:
        """Whether bfloat16 weights are kept in 12 bits. With AVX2, unpacking takes as long as the reading it saves."""
        return "avx512f" in self.needs


LEVELS = {  # best first
    level.name: level
    for level in (
        Level(
            "amx",
            (*_AVX512, "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8"),
            (*_AVX512_FLAGS, "-mavx512bf16", "-mavx512vnni", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        ),
        Level(
            "avx512_bf16",
            (*_AVX512, "avx512_bf16", "avx512vbmi", "avx512_vnni"),
            (*_AVX512_FLAGS, "-mavx512bf16", "-mavx512vbmi", "-mavx512vnni", "-DSTOKER_PAIR_PRODUCTS"),
        ),
        Level("avx512", _AVX512, _AVX512_FLAGS),
        Level("avx2", _AVX2, ("-mavx2", "-mfma")),
        Level("portable", (), ()),
    )
}


class NoKernels(Exception):
    """The C++ kernels cannot be used. The message is the reason; torch is used instead."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor of this machine."""

    machine: str  # x86_64
    vendor: str  # GenuineIntel
    flags: frozenset[str]

    def has(self, level: Level) -> bool:
        return all(flag in self.flags for flag in level.needs)


def this_cpu() -> Cpu:
    """The processor, without features that Linux does not allow this process to use."""
    vendor, flags = "", frozenset[str]()
    if sys.platform == "linux":
        for line in _CPUINFO.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "vendor_id":
                vendor = value.strip()
            elif key.strip() == "flags":
                flags = frozenset(value.split())
                break  # all processors of a machine have the same flags
    if any(flag.startswith("amx") for flag in flags) and not _may_use_tiles():
        flags = frozenset(flag for flag in flags if not flag.startswith("amx"))
    return Cpu(platform.machine(), vendor, flags)


def _may_use_tiles() -> bool:
    """A process must request the 8 KiB of AMX state from Linux once before it may use AMX."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18  # x86_64
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)


def choose_level(wanted: str, cpu: Cpu) -> tuple[Level, str]:
    """The level to use, and the reason.

    wanted: `auto`, a level's name, or `torch` for no C++ kernels.
    Raises NoKernels if torch is to be used, ValueError for a level that does not exist or that the CPU lacks.
    """
    if wanted == "torch":
        raise NoKernels(f"{VARIABLE}=torch")
    if wanted != "auto" and wanted not in LEVELS:
        raise ValueError(f"{VARIABLE} is {wanted!r}; allowed: auto, {', '.join(LEVELS)}, torch")
    if cpu.machine not in ("x86_64", "AMD64"):
        raise NoKernels(f"there are no kernels for {cpu.machine} processors")
    if not cpu.flags:
        raise NoKernels(f"the processor's flags cannot be read on {sys.platform}")
    if wanted != "auto":
        level = LEVELS[wanted]
        missing = [flag for flag in level.needs if flag not in cpu.flags]
        if missing:
            raise ValueError(f"{VARIABLE} is {wanted!r}, but this CPU lacks {', '.join(missing)}")
        return level, f"{VARIABLE}={wanted}"
    best = next(level for level in LEVELS.values() if cpu.has(level))
    if best.name == "avx512_bf16" and cpu.vendor == "GenuineIntel":
        # vdpbf16ps does half the work per second of float32 multiply-adds over widened weights (measured on a fifth
        # generation Xeon: 87 against 153 GFLOP/s and core); AMD's does twice the work.
        return LEVELS["avx512"], "the best that this CPU runs; its avx512_bf16 is slower"
    return best, "the best that this CPU runs"


def wanted_level() -> str:
    return os.environ.get(VARIABLE, "auto") or "auto"


def find_compiler() -> str:
    """CXX if it is set, else the first of COMPILERS in PATH. Raises NoKernels if there is none."""
    names = (os.environ["CXX"],) if os.environ.get("CXX") else COMPILERS
    for name in names:
        found = shutil.which(name)
        if found:
            return found
    raise NoKernels(f"no C++ compiler found (looked for {', '.join(names)})")
