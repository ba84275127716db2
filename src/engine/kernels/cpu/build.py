"""Compiles the C++ kernels with the system's compiler, several files at a time, and reports the progress.

Used by the build hook of the wheel (hatch_build.py), by a start that finds no library (library.py), and as a command:
`python -m stoker.engine.kernels.cpu` (__main__.py). Standard library only. The same sources, flags and compiler give
the same bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

from ....config.cpu_features import LEVELS, NoKernels, choose_level, find_compiler, this_cpu, wanted_level
from ....config.cpu_library import BATCH_INVARIANT, SOURCES, LibrarySpec, find_library, is_private
from .progress import Meter, Report
from .scratch import Scratch

FILE_TIMEOUT_S = 3600  # of a compiler that hangs: on a busy machine a file can take many minutes
SCRATCH_SUFFIX = ".objects"
LINK_FLAGS = ("-shared", "-s", "-Wl,--build-id=none")
# Processor seconds of gcc 12 for files that take more than 2, at the level avx512_bf16: these are compiled first, and
# the time left is estimated from them.
_SECONDS = {
    "attention.cpp": 4.5,
    "compressed_attention.cpp": 5,
    "compressed_index.cpp": 2.5,
    "compressed_vectors.cpp": 4,
    "linear.cpp": 8.5,
    "linear_grouped_4.cpp": 13,
    "linear_grouped_6.cpp": 14.5,
    "linear_grouped_8.cpp": 12,
    "linear_int4.cpp": 11,
    "linear_int8.cpp": 11,
    "linear_integer.cpp": 12,
    "linear_twelve_bits.cpp": 9,
    "sampling.cpp": 2.5,
}


Run = Callable[[Sequence[str]], str]  # arguments of the compiler to its output


@dataclass(frozen=True, slots=True)
class _Object:
    source: Path
    flags: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return _SECONDS.get(self.source.name, 1)


def compile_libraries(
    specs: Sequence[LibrarySpec],
    folder: Path,
    report: Report,
    *,
    jobs: int | None = None,
    nice: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> list[Path]:
    """Compiles each library into `folder` under its `file_name`. Files that libraries have in common are compiled once.

    Args:
        report: called in this thread when the work begins and after each file.
        jobs: compilers that run at the same time; None for the number of usable cores.
        nice: at a low priority, next to an engine that serves requests.

    Raises NoKernels with the first error message of the compiler.
    """
    compiler = [find_compiler()]
    if nice and (program := shutil.which("nice")):
        compiler = [program, *compiler]
    jobs = jobs or len(os.sched_getaffinity(0))
    targets = {spec: folder / spec.file_name for spec in specs}  # named before: sources may be edited meanwhile
    with Scratch(folder, f"{targets[specs[0]].stem}.", SCRATCH_SUFFIX) as scratch:
        run = partial(_run, scratch, compiler)
        parts = {spec: _objects(spec, specs, run) for spec in specs}
        objects = sorted(dict.fromkeys(each for part in parts.values() for each in part), key=lambda o: -o.seconds)
        made = {each: scratch.folder / f"{number}.o" for number, each in enumerate(objects)}
        _compile(made, run, Meter([each.seconds for each in objects], jobs, report, clock), jobs)
        for spec, part in parts.items():
            _link([made[each] for each in part], run, scratch.folder / "library.so", targets[spec])
    return list(targets.values())


def _objects(spec: LibrarySpec, specs: Sequence[LibrarySpec], run: Run) -> list[_Object]:
    """The flag of batch-invariant kernels is left out for files that do not read it, if those are compiled anyway."""
    has_twin = spec.is_batch_invariant and any(
        each.level == spec.level and not each.is_batch_invariant for each in specs
    )
    plain = tuple(flag for flag in spec.flags if flag != BATCH_INVARIANT)
    return [
        _Object(source, plain if has_twin and not _is_invariant(source, plain, run) else spec.flags)
        for source in spec.sources()
    ]


def _is_invariant(source: Path, flags: Sequence[str], run: Run) -> bool:
    """Whether the file includes batch_invariant.h with these flags, directly or not."""
    return "batch_invariant.h" in run([*flags, "-MM", source.name])


def _compile(made: dict[_Object, Path], run: Run, meter: Meter, jobs: int) -> None:
    """Each thread waits for one compiler. They are daemons: a process that ends does not wait for them."""
    waiting: SimpleQueue[tuple[_Object, Path]] = SimpleQueue()
    done: SimpleQueue[_Object | Exception] = SimpleQueue()
    is_over = threading.Event()
    for item in made.items():
        waiting.put(item)

    def work() -> None:
        while not (waiting.empty() or is_over.is_set()):
            with contextlib.suppress(Empty):
                each, path = waiting.get_nowait()
                meter.begin(each, each.seconds)
                try:
                    run([*each.flags, "-c", each.source.name, "-o", str(path)])
                    done.put(each)
                except Exception as error:
                    done.put(error)

    for _ in range(min(jobs, len(made))):
        threading.Thread(target=work, name="compiler", daemon=True).start()
    try:
        for _ in made:
            result = done.get()
            if isinstance(result, Exception):
                raise result
            meter.end(result)
    finally:
        is_over.set()


def _link(objects: Iterable[Path], run: Run, made: Path, target: Path) -> None:
    run([*LINK_FLAGS, *map(str, objects), "-o", str(made)])
    made.chmod(0o755)  # whatever the umask: a library that a group can write is not loaded
    os.replace(made, target)  # the whole file or none


def _run(scratch: Scratch, compiler: Sequence[str], arguments: Sequence[str]) -> str:
    """What the compiler prints. It runs in the folder of the sources, so that files contain no path of this machine."""
    try:
        done = scratch.run([*compiler, *arguments], SOURCES, FILE_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise NoKernels(f"the compiler took more than {FILE_TIMEOUT_S} s for {arguments[-3]}") from error
    if done.returncode:
        lines = done.stderr.splitlines()
        message = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
        raise NoKernels(f"the kernels could not be compiled: {message.strip()}")
    return done.stdout


def compile_into_cache(spec: LibrarySpec, folder: Path, report: Report, *, nice: bool = False) -> Path:
    """The library from the cache, compiled if it is not there. Processes that start together compile it once."""
    with open(_lock_of(folder, spec.file_name), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _remove_abandoned(folder, spec.file_name)
        target = folder / spec.file_name
        if is_private(target):
            return target
        return compile_libraries([spec], folder, report, nice=nice)[0]


def _lock_of(folder: Path, library: str) -> Path:
    return folder / f"{library}.lock"


def _remove_abandoned(folder: Path, locked: str) -> None:
    """Remove scratch folders whose process and watcher were both killed, also of older sources.

    locked: the library that this process has locked.
    """
    for scratch in folder.glob(f"*{SCRATCH_SUFFIX}"):
        library = f"{scratch.name.partition('.')[0]}.so"
        with contextlib.suppress(OSError), open(_lock_of(folder, library), "r+") as lock:
            if library != locked:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if another process compiles it
            shutil.rmtree(scratch, ignore_errors=True)


def specs_of(levels: Iterable[str], *, has_quantised: bool) -> list[LibrarySpec]:
    """The plain and the batch-invariant library of each level."""
    return [LibrarySpec(LEVELS[name], is_invariant, has_quantised) for name in levels for is_invariant in (False, True)]


def compile_here(tell: Callable[[str], None], folder: Path, *, has_all: bool = False) -> list[Path]:
    """Compiles what is missing in `folder` for this machine, and removes outdated libraries.

    has_all: all libraries, instead of only the one that a deployment with default options uses.

    Raises NoKernels where the kernels cannot be compiled or used.
    """
    level, _ = choose_level(wanted_level(), this_cpu())
    every = specs_of([level.name], has_quantised=False) + specs_of([level.name], has_quantised=True)
    missing = [spec for spec in (every if has_all else every[:1]) if find_library(spec, folder) is None]
    kept = {spec.file_name for spec in every}
    for path in folder.glob("*.so"):
        if path.name not in kept:  # compiled from older sources
            path.unlink()
    if not missing:
        tell(f"C++ kernels for {level.name}: already compiled")
        return []
    folder.mkdir(parents=True, exist_ok=True)
    return compile_libraries(missing, folder, lambda progress: tell(f"C++ kernels for {level.name}: {progress}"))
