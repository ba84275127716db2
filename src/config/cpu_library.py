"""The compiled C++ kernels as files: which library a deployment needs, and the file that contains it.

A library is identified by a hash of its sources and flags, so one of older sources is never loaded. Libraries that were
compiled with the package are in PREBUILT, others in the user's cache. engine/kernels/cpu/build.py compiles, library.py
beside it loads. Standard library only: plans ask which kernels there are, and the build hook of the wheel uses this.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
from dataclasses import dataclass, replace
from pathlib import Path

from .cpu_features import Level, find_compiler

SOURCES = Path(__file__).parents[1] / "engine" / "kernels" / "cpu"
PREBUILT = SOURCES / "prebuilt"
# -ffp-contract=fast: fused multiply-adds, which is gcc's default and not clang's.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=fast")
BATCH_INVARIANT = "-DSTOKER_BATCH_INVARIANT"
# Half of the time that all sources take to compile.
QUANTISED = (
    "linear_grouped.cpp",
    "linear_grouped_4.cpp",
    "linear_grouped_6.cpp",
    "linear_grouped_8.cpp",
    "linear_int4.cpp",
    "linear_int8.cpp",
    "linear_integer.cpp",
    "quantise.cpp",
)


@dataclass(frozen=True, slots=True)
class LibrarySpec:
    """has_quantised: with the kernels for int8 and int4 weights, in addition to all others."""

    level: Level
    is_batch_invariant: bool = False
    has_quantised: bool = False

    @property
    def name(self) -> str:
        parts = [self.level.name]
        if self.is_batch_invariant:
            parts.append("invariant")
        if self.has_quantised:
            parts.append("quantised")
        return "-".join(parts)

    @property
    def flags(self) -> tuple[str, ...]:
        flags = (*FLAGS, *self.level.compiler_flags)
        return (*flags, BATCH_INVARIANT) if self.is_batch_invariant else flags

    def sources(self) -> list[Path]:
        return [path for path in sorted(SOURCES.glob("*.cpp")) if self.has_quantised or path.name not in QUANTISED]

    def key(self) -> str:
        digest = hashlib.sha256()
        for part in (platform.machine(), *self.flags):
            digest.update(part.encode() + b"\0")
        for path in (*self.sources(), *sorted(SOURCES.glob("*.h"))):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()[:16]

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.key()}.so"


def find_library(spec: LibrarySpec, cache_dir: Path | None) -> Path | None:
    """A file with at least the kernels of `spec`: from the package, else from the cache; None if neither has one."""
    names = [each.file_name for each in dict.fromkeys((spec, replace(spec, has_quantised=True)))]
    for name in names:
        if (PREBUILT / name).is_file():  # who can write here can change the Python code too: nothing to check
            return PREBUILT / name
    if cache_dir is not None and is_private(cache_dir):
        for name in names:
            if is_private(cache_dir / name):
                return cache_dir / name
    return None


def is_private(path: Path) -> bool:
    """Whether a file or folder exists, and only root and this user can write to it."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    is_own = found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return is_own and not stat.S_ISLNK(found.st_mode)


def check_obtainable(spec: LibrarySpec) -> None:
    """Raises NoKernels if the library neither exists nor can be compiled."""
    if find_library(spec, default_cache_dir()) is None:
        find_compiler()


def default_cache_dir() -> Path | None:
    """$XDG_CACHE_HOME/stoker/kernels or ~/.cache/stoker/kernels; None if there is no home."""
    root = os.environ.get("XDG_CACHE_HOME")
    if not root:
        home = os.environ.get("HOME")
        root = os.path.join(home, ".cache") if home else None
    return Path(root, "stoker", "kernels") if root else None
