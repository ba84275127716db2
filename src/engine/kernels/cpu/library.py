"""The C++ kernels as a shared library, loaded through ctypes.

It has a plain C interface and is not linked to torch, so one library works with every torch version; its threads belong
to the OpenMP runtime that torch has loaded (parallel.h). config/cpu_library.py finds the file, build.py compiles it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import torch

from ....config.cpu_features import Level, NoKernels, find_compiler
from ....config.cpu_library import LibrarySpec, default_cache_dir, find_library, is_private
from .build import compile_into_cache
from .memory import ResultMemory
from .progress import Report
from .scratch import Scratch

logger = logging.getLogger(__name__)
POINTER, INT, INT64, FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
_SUFFIXES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class CallWrapper(Protocol):
    def wrap(
        self, name: str, function: Callable[..., Any], replay_address: int | None, arguments: Sequence[Any]
    ) -> Callable[..., Any]:
        """What to call instead of the function. replay_address: address of <name>_replay; None without it."""
        ...


@dataclass(frozen=True, slots=True)
class CpuLibrary:
    """A loaded library. Its functions run without Python's lock."""

    spec: LibrarySpec
    path: Path
    handle: ctypes.CDLL
    compile_seconds: float | None  # None: it was found
    memory: ResultMemory = field(default_factory=ResultMemory)  # for the results of its ops
    wrapper: CallWrapper | None = None  # wraps every function that is looked up from now on

    @property
    def level(self) -> Level:
        return self.spec.level

    def function(self, name: str, arguments: Sequence[Any], returns: Any = None) -> Callable[..., Any]:
        function = self.handle[name]
        function.argtypes, function.restype = list(arguments), returns
        if self.wrapper is None:
            return function
        replayed = getattr(self.handle, f"{name}_replay", None)  # captured_graph.h
        address = ctypes.cast(replayed, POINTER).value if replayed is not None else None
        return self.wrapper.wrap(name, function, address, arguments)

    def address(self, name: str) -> int:
        """Address of a function that another function of the library calls."""
        address = ctypes.cast(self.handle[name], POINTER).value
        assert address is not None, name
        return address

    def op(self, name: str, dtype: torch.dtype, arguments: Sequence[Any], returns: Any = None) -> Callable[..., Any]:
        """The op's function for one type of elements."""
        return self.function(f"{name}_{suffix(dtype)}", arguments, returns)


def suffix(dtype: torch.dtype) -> str:
    """Suffix of the names of functions for one type of elements."""
    return _SUFFIXES[dtype]


def pointer(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """The address of a tensor's elements. Raises ValueError if they are not contiguous or not of this type."""
    if tensor.dtype is not dtype or not tensor.is_contiguous():
        layout = "contiguous" if tensor.is_contiguous() else "strided"
        raise ValueError(f"expected contiguous elements of {dtype}, got {layout} ones of {tensor.dtype}")
    return tensor.data_ptr()


_loaded: dict[tuple[LibrarySpec, Path | None], CpuLibrary] = {}  # a process loads each library once


def is_loadable(spec: LibrarySpec) -> bool:
    """Whether `load_library` would find the library, and not compile it."""
    folder = default_cache_dir()
    return (spec, folder) in _loaded or find_library(spec, folder) is not None


def load_library(
    spec: LibrarySpec, cache_dir: Path | None = None, *, report: Report = lambda _: None, nice: bool = False
) -> CpuLibrary:
    """Loads a library, and compiles it if there is none.

    Args:
        cache_dir: where compiled libraries are kept; None for the user's cache.
        report, nice: as compile_libraries takes them.

    Raises NoKernels with the reason: no compiler, a failed compilation, an unknown OpenMP runtime.
    """
    folder = cache_dir or default_cache_dir()
    if (spec, folder) not in _loaded:
        if not hasattr(ctypes.CDLL(None), "GOMP_parallel"):
            raise NoKernels("torch has loaded no OpenMP runtime that offers GOMP_parallel")
        _loaded[spec, folder] = library = _load_found(spec, folder) or _load_compiled(spec, folder, report, nice)
        library.handle.set_num_threads(torch.get_num_threads())
    return _loaded[spec, folder]


def _load_found(spec: LibrarySpec, folder: Path | None) -> CpuLibrary | None:
    path = find_library(spec, folder)
    if path is None:
        return None
    try:
        return CpuLibrary(spec, path, ctypes.CDLL(str(path)), None)
    except OSError as error:  # a full disk or a crash of the machine can leave a damaged file
        logger.warning("%s cannot be loaded and is compiled again: %s", path, error)
        if path.parent == folder:
            path.unlink()
        return None


def _load_compiled(spec: LibrarySpec, cache_dir: Path | None, report: Report, nice: bool) -> CpuLibrary:
    find_compiler()
    level = logging.INFO if nice else logging.WARNING  # a caller that waits sees it without configured logging
    logger.log(level, "compiling the C++ kernels %s, once for this version: about half a minute", spec.name)
    began = time.monotonic()
    with _usable(cache_dir) as folder:
        try:
            path = compile_into_cache(spec, folder, report, nice=nice)
            return CpuLibrary(spec, path, ctypes.CDLL(str(path)), time.monotonic() - began)
        except OSError as error:
            raise NoKernels(f"the kernels cannot be compiled in {folder}: {error}") from error


@contextlib.contextmanager
def _usable(cache_dir: Path | None) -> Iterator[Path]:
    """The cache, or a private temporary folder if the cache cannot be used: then every start compiles.

    The temporary one is removed at the end of the block; a library that was loaded stays loaded.
    """
    if _is_usable(cache_dir):
        yield cache_dir
    else:
        with Scratch(Path(tempfile.gettempdir()), "stoker-kernels-") as scratch:
            yield scratch.folder


def _is_usable(cache_dir: Path | None) -> TypeGuard[Path]:
    if cache_dir is not None:
        try:
            cache_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=cache_dir):
                if is_private(cache_dir):
                    return True
            reason = "other users can write to it, so that libraries in it cannot be trusted"
        except OSError as error:
            reason = str(error)
        logger.warning("C++ kernels are not cached: %s: %s", cache_dir, reason)
    return False
