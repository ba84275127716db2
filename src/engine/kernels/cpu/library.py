"""The C++ kernels as a shared library: built by the system's compiler on first use, cached, loaded through ctypes.

One library per level of config/cpu_features.py. It has a plain C interface and is not linked to torch, so one build
serves every torch version; its threads are those of the OpenMP runtime that torch has loaded (parallel.h).
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

from ....config.cpu_features import Level, NoKernels, find_compiler
from .memory import ResultMemory

SOURCES = Path(__file__).parent
# -ffp-contract=fast: multiply-adds in one rounding, which gcc does unasked and clang does not.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=fast")
BUILD_TIMEOUT_S = 300

POINTER, INT, INT64, FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
_SUFFIXES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class Watcher(Protocol):
    def watch(
        self, name: str, function: Callable[..., Any], with_words: int | None, arguments: Sequence[Any]
    ) -> Callable[..., Any]:
        """What to call instead of the function. with_words: address of its twin in program.h, if it has one."""
        ...


@dataclass(frozen=True, slots=True)
class CpuLibrary:
    """A loaded library. Its functions run without Python's lock."""

    level: Level
    path: Path
    handle: ctypes.CDLL
    build_seconds: float | None  # None: it was in the cache
    memory: ResultMemory = field(default_factory=ResultMemory)  # for the results of its ops
    watcher: Watcher | None = None  # sees the calls of all functions that are taken from now on

    def function(self, name: str, arguments: Sequence[Any], returns: Any = None) -> Callable[..., Any]:
        function = self.handle[name]
        function.argtypes, function.restype = list(arguments), returns
        if self.watcher is None:
            return function
        with_words = getattr(self.handle, f"{name}_words", None)  # program.h
        address = ctypes.cast(with_words, POINTER).value if with_words is not None else None
        return self.watcher.watch(name, function, address, arguments)

    def op(self, name: str, dtype: torch.dtype, arguments: Sequence[Any], returns: Any = None) -> Callable[..., Any]:
        """The op's function for one type of numbers."""
        return self.function(f"{name}_{_SUFFIXES[dtype]}", arguments, returns)


def pointer(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """The address of a tensor's numbers, once it is sure that they are what the kernel takes them for."""
    if tensor.dtype is not dtype or not tensor.is_contiguous():
        layout = "contiguous" if tensor.is_contiguous() else "strided"
        raise ValueError(f"expected contiguous numbers of {dtype}, got {layout} ones of {tensor.dtype}")
    return tensor.data_ptr()


def load_library(level: Level, cache_dir: Path | None = None) -> CpuLibrary:
    """Loads the library of a level, building it where the cache does not hold it.

    cache_dir: instead of the user's.
    Raises NoKernels with the reason: no compiler, a failed build, an unknown OpenMP runtime.
    """
    return _load(level, cache_dir or default_cache_dir())


@cache
def _load(level: Level, cache_dir: Path | None) -> CpuLibrary:
    if not hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        raise NoKernels("torch has loaded no OpenMP runtime that offers GOMP_parallel")
    compiler = find_compiler()
    folder = _usable(cache_dir)
    try:
        path, build_seconds, handle = _open(level, compiler, folder)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoKernels(f"the kernels cannot be built in {folder}: {error}") from error
    finally:
        if folder != cache_dir:
            shutil.rmtree(folder, ignore_errors=True)  # what is loaded stays loaded
    handle.set_num_threads(torch.get_num_threads())
    return CpuLibrary(level, path, handle, build_seconds)


def _open(level: Level, compiler: str, folder: Path) -> tuple[Path, float | None, ctypes.CDLL]:
    path, build_seconds = _built(level, compiler, folder)
    try:
        return path, build_seconds, ctypes.CDLL(str(path))
    except OSError:  # a full disk or a crash of the machine can leave a file that is no library
        path.unlink()
    path, build_seconds = _built(level, compiler, folder)
    return path, build_seconds, ctypes.CDLL(str(path))


def default_cache_dir() -> Path | None:
    """$XDG_CACHE_HOME/stoker or ~/.cache/stoker; None where there is no home."""
    root = os.environ.get("XDG_CACHE_HOME")
    if not root:
        home = os.environ.get("HOME")
        root = os.path.join(home, ".cache") if home else None
    return Path(root, "stoker", "kernels") if root else None


def _usable(cache_dir: Path | None) -> Path:
    """The cache, or a private temporary folder where it cannot be written: then every start builds anew."""
    if cache_dir is not None:
        try:
            cache_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=cache_dir):
                return cache_dir
        except OSError:
            pass
    return Path(tempfile.mkdtemp(prefix="stoker-kernels-"))


def _built(level: Level, compiler: str, cache_dir: Path) -> tuple[Path, float | None]:
    """The library's path and, if it was built now, the seconds that took."""
    target = cache_dir / f"{level.name}-{_key(level, compiler)}.so"
    if target.exists():
        return target, None
    with open(cache_dir / f"{target.stem}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # processes that start together build once
        if target.exists():
            return target, None
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=cache_dir) as folder:
            made = _compile(level, compiler, Path(folder))
            os.replace(made, target)  # whole or not at all
        return target, time.monotonic() - began


def _key(level: Level, compiler: str) -> str:
    digest = hashlib.sha256()
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=BUILD_TIMEOUT_S, check=False).stdout
    for part in (compiler.encode(), version, *(flag.encode() for flag in (*FLAGS, *level.compiler_flags))):
        digest.update(part + b"\0")
    for source in sorted((*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h"))):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _compile(level: Level, compiler: str, folder: Path) -> Path:
    """Compiles every source at once, one process each, and links them. Raises NoKernels with the compiler's words."""
    objects = {source: folder / f"{source.stem}.o" for source in sorted(SOURCES.glob("*.cpp"))}
    flags = (*FLAGS, *level.compiler_flags)
    _run([[compiler, *flags, "-c", str(source), "-o", str(made)] for source, made in objects.items()])
    library = folder / "library.so"
    _run([[compiler, "-shared", *map(str, objects.values()), "-o", str(library)]])
    return library


def _run(commands: Sequence[Sequence[str]]) -> None:
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for command in commands]
    failure = ""
    for process in running:
        try:
            errors = process.communicate(timeout=BUILD_TIMEOUT_S)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            errors = process.communicate()[1] + b"\nerror: took too long"
        if process.returncode != 0 and not failure:
            lines = errors.decode(errors="replace").splitlines()
            failure = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
    if failure:
        raise NoKernels(f"{commands[0][0]} could not build the kernels: {failure.strip()}")
