"""Which kernels a CPU gets: its level of instructions, or the one in STOKER_CPU_FEATURES, and what each op runs then.

A level is a set of compiler flags. The library of a level holds every kernel in the form that is best with these
instructions; it runs on any CPU that has them, whatever machine it was built on. No torch: a plan chooses here too.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from .quantised import shown

VARIABLE = "STOKER_CPU_FEATURES"
COMPILERS = ("c++", "g++", "clang++")
STAGES = ("add_rms_norm", "linear", "rope_and_store", "paged_attention", "silu_and_mul", "sampling", "decode_step")
MAX_HEAD_DIM = 256  # the widest that is tested
KERNEL_DTYPES = ("float32", "bfloat16")
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
        """Whether linear layers of this type are the library's: of float32, torch has better than plain C++."""
        return dtype == "bfloat16" or (dtype == "float32" and self.name != "portable")

    def batch_invariant(self) -> Level:
        """The same instructions in a library of its own, in which no sum depends on what else is computed with it."""
        return replace(self, compiler_flags=(*self.compiler_flags, "-DSTOKER_BATCH_INVARIANT"))

    @property
    def has_twelve_bits(self) -> bool:
        """Whether bfloat16 weights are kept in 12 bits. With AVX2 unpacking takes as long as reading what it saves."""
        return "avx512f" in self.needs


LEVELS = {  # best first
    level.name: level
    for level in (
        Level(
            "amx",
            (*_AVX512, "avx512_bf16", "amx_tile", "amx_bf16"),
            (*_AVX512_FLAGS, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
        ),
        Level(
            "avx512_bf16",
            (*_AVX512, "avx512_bf16", "avx512vbmi"),
            (*_AVX512_FLAGS, "-mavx512bf16", "-mavx512vbmi", "-DSTOKER_PAIR_PRODUCTS"),
        ),
        Level("avx512", _AVX512, _AVX512_FLAGS),
        Level("avx2", _AVX2, ("-mavx2", "-mfma")),
        Level("portable", (), ()),
    )
}


EAGER = "model.enforce_eager"  # why there are no kernels
_ONE_ORDER, _ONE_ROW = "; the same sums in any batch", "; one row at a time for the same sums in any batch: slow"


class NoKernels(Exception):
    """The C++ kernels cannot be used here. The message says why; torch takes their place."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """What this machine's processor says of itself."""

    machine: str  # x86_64
    vendor: str  # GenuineIntel
    flags: frozenset[str]

    def has(self, level: Level) -> bool:
        return all(flag in self.flags for flag in level.needs)


def this_cpu() -> Cpu:
    """The processor, less what Linux does not let this process use."""
    vendor, flags = "", frozenset[str]()
    if sys.platform == "linux":
        for line in _CPUINFO.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "vendor_id":
                vendor = value.strip()
            elif key.strip() == "flags":
                flags = frozenset(value.split())
                break  # the processors of a machine are alike
    if any(flag.startswith("amx") for flag in flags) and not _may_use_tiles():
        flags = frozenset(flag for flag in flags if not flag.startswith("amx"))
    return Cpu(platform.machine(), vendor, flags)


def _may_use_tiles() -> bool:
    """Linux keeps AMX's 8 KiB of state out of a process until it asks for it, once."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18  # x86_64
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)


def choose_level(wanted: str, cpu: Cpu) -> tuple[Level, str]:
    """The level to use and why.

    wanted: `auto`, a level's name, or `torch` for no C++ at all.
    Raises NoKernels where torch is to be used, ValueError for a level that does not exist or that the CPU lacks.
    """
    if wanted == "torch":
        raise NoKernels(f"{VARIABLE}=torch")
    if wanted != "auto" and wanted not in LEVELS:
        raise ValueError(f"{VARIABLE} is {wanted!r}; allowed: auto, {', '.join(LEVELS)}, torch")
    if cpu.machine not in ("x86_64", "AMD64"):
        raise NoKernels(f"no kernels for {cpu.machine} processors yet")
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


def keeps_twelve_bits() -> bool:
    """Whether a start on this machine keeps bfloat16 weights in 12 bits."""
    try:
        level, _ = choose_level(wanted_level(), this_cpu())
        find_compiler()
    except (NoKernels, ValueError):
        return False
    return level.has_twelve_bits


def find_compiler() -> str:
    """CXX if it is set, else the first of COMPILERS on the path. Raises NoKernels if there is none."""
    names = (os.environ["CXX"],) if os.environ.get("CXX") else COMPILERS
    for name in names:
        found = shutil.which(name)
        if found:
            return found
    raise NoKernels(f"no C++ compiler found (looked for {', '.join(names)})")


def takes_heads(head_dim: int) -> bool:
    """Whether the C++ kernels attend with heads of so many numbers."""
    return head_dim % 16 == 0 and head_dim <= MAX_HEAD_DIM


def stage_table(
    level: Level,
    reason: str,
    dtype: str,
    head_dim: int,
    kv_dtype: str,
    quantization: str | None = None,
    *,
    batch_invariant: bool = False,
) -> dict[str, str]:
    """What each stage runs and why, once the C++ library of a level is there.

    reason: why it is this level.
    quantization: scheme of the linear layers' weights.
    batch_invariant: `model.batch_invariant`.
    Raises NoKernels for a dtype that the library does not have.
    """
    if dtype not in KERNEL_DTYPES:
        raise NoKernels(f"no C++ kernels for {dtype}")
    table = dict.fromkeys(STAGES, f"c++ {level.name}: {reason}")
    if quantization is not None:
        table["linear"] += f"; {shown(quantization)}"
    elif dtype == "bfloat16" and level.has_twelve_bits:
        table["linear"] += "; bfloat16 kept in 12 bits, exactly"
    elif not level.multiplies(dtype):
        table["linear"] = f"torch: its product of {dtype} matrices"
    if not takes_heads(head_dim):
        table["rope_and_store"] = table["paged_attention"] = (
            f"torch: heads of {head_dim} numbers; the C++ kernels take multiples of 16 up to {MAX_HEAD_DIM}"
        )
    if kv_dtype != dtype:
        table["rope_and_store"] = table["paged_attention"] = f"torch: keys and values in {kv_dtype} beside {dtype}"
    if batch_invariant:
        table = _told(table)
    if missing := [stage for stage, kernel in table.items() if kernel.startswith("torch")]:
        table["decode_step"] = f"op by op: {', '.join(missing)} in torch"
    else:
        table["decode_step"] = "replayed: captured at the first step of each number of rows"
    return table


def torch_table(reason: str, quantization: str | None = None, *, batch_invariant: bool = False) -> dict[str, str]:
    """What each stage runs where the library is not there."""
    table = dict.fromkeys(STAGES, f"torch: {reason}")
    if quantization is not None:
        table["linear"] += f"; {shown(quantization)}, widened again for every product: slow"
    return _told(table) if batch_invariant else table


def _told(table: dict[str, str]) -> dict[str, str]:
    """With what `model.batch_invariant` does to each stage."""
    return {stage: kernel + (_ONE_ROW if kernel.startswith("torch") else _ONE_ORDER) for stage, kernel in table.items()}


def planned_kernels(
    dtype: str,
    head_dim: int,
    kv_dtype: str | None = None,
    *,
    is_eager: bool = False,
    quantization: str | None = None,
    batch_invariant: bool = False,
) -> dict[str, str]:
    """The table that a start on this machine will print, as far as it is known before the library is built.

    kv_dtype: of keys and values; None for `dtype`.
    """
    try:
        if is_eager:
            raise NoKernels(EAGER)
        level, reason = choose_level(wanted_level(), this_cpu())
        find_compiler()
        return stage_table(
            level, reason, dtype, head_dim, kv_dtype or dtype, quantization, batch_invariant=batch_invariant
        )
    except (NoKernels, ValueError) as error:
        return torch_table(str(error), quantization, batch_invariant=batch_invariant)
