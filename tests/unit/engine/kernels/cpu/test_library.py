"""Building, caching and loading, with a source small enough to compile in a moment."""

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from stoker.config.cpu_features import Level, NoKernels, find_compiler
from stoker.engine.kernels.cpu import library
from stoker.engine.kernels.cpu.library import default_cache_dir, load_library

TINY = """
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT void set_num_threads(int) {}
EXPORT int answer() { return ANSWER; }
"""


def has_compiler():
    try:
        find_compiler()
    except NoKernels:
        return False
    return True


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on this machine")


def level(answer=42):
    return Level("tiny", (), (f"-DANSWER={answer}",))


@pytest.fixture(autouse=True)
def tiny_source(tmp_path, monkeypatch):
    """Every test has its own source, cache, and no memory of libraries loaded before."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "tiny.cpp").write_text(TINY)
    monkeypatch.setattr(library, "SOURCES", sources)
    library._load.cache_clear()
    yield sources
    library._load.cache_clear()


@pytest.fixture
def cache_dir(tmp_path):
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def counting_compiler(tmp_path, monkeypatch):
    """The real compiler behind a script that notes each time it is called to compile."""
    log = tmp_path / "calls"
    log.touch()
    script = tmp_path / "counting-c++"
    script.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*) echo >>{log};; esac\nexec {find_compiler()} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return lambda: len(log.read_text())


def answer_of(built):
    return built.function("answer", [], library.INT)()


@needs_compiler
def test_a_library_is_built_once_and_then_found(cache_dir, counting_compiler):
    first = load_library(level(), cache_dir)
    assert first.build_seconds is not None
    library._load.cache_clear()
    second = load_library(level(), cache_dir)
    assert second.build_seconds is None
    assert second.path == first.path
    assert answer_of(first) == answer_of(second) == 42
    assert counting_compiler() == 1
    assert sorted(path.suffix for path in cache_dir.iterdir()) == [".lock", ".so"]


@needs_compiler
def test_other_flags_or_sources_make_another_library(cache_dir, tiny_source):
    built = [load_library(level(1), cache_dir), load_library(level(2), cache_dir)]
    (tiny_source / "tiny.cpp").write_text(TINY.replace("ANSWER;", "ANSWER + 10;"))
    library._load.cache_clear()
    built.append(load_library(level(1), cache_dir))
    assert [answer_of(each) for each in built] == [1, 2, 11]


@needs_compiler
def test_processes_that_start_together_build_once(cache_dir, counting_compiler):
    """Threads stand for processes: each opens the lock file itself, as a process would."""
    with ThreadPoolExecutor(4) as pool:
        paths = list(
            pool.map(lambda _: library._built(level(), find_compiler(), library._usable(cache_dir))[0], "1234")
        )
    assert len(set(paths)) == 1
    assert counting_compiler() == 1


@needs_compiler
def test_a_broken_source_is_told_in_the_compilers_words(cache_dir, tiny_source):
    (tiny_source / "tiny.cpp").write_text("int answer() { return 42 }")
    with pytest.raises(NoKernels, match=r"could not build the kernels: .*tiny\.cpp:1.*error"):
        load_library(level(), cache_dir)
    assert [path.suffix for path in cache_dir.iterdir()] == [".lock"]  # nothing half-built is left


def test_a_compiler_that_is_not_there_is_named(monkeypatch, cache_dir):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NoKernels, match=r"^no C\+\+ compiler found \(looked for no-such-compiler\)$"):
        load_library(level(), cache_dir)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoKernels, match=r"^no C\+\+ compiler found \(looked for c\+\+, g\+\+, clang\+\+\)$"):
        load_library(level(), cache_dir)


def test_a_compiler_that_only_fails_is_named(monkeypatch, cache_dir):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(NoKernels, match=r"false could not build the kernels: no message$"):
        load_library(level(), cache_dir)


@needs_compiler
def test_a_failing_disk_is_a_reason_and_no_crash(cache_dir, monkeypatch):
    def no_space(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(NoKernels, match=r"^the kernels cannot be built in .*No space left on device$"):
        load_library(level(), cache_dir)


@needs_compiler
def test_a_cache_that_cannot_be_written_is_replaced_by_a_private_folder(tmp_path):
    (tmp_path / "file").touch()  # a folder cannot be made under a file, not even by root
    built = load_library(level(), tmp_path / "file" / "cache")
    assert answer_of(built) == 42
    assert built.path.parent.name.startswith("stoker-kernels-")
    assert not built.path.parent.exists()  # loaded, so no longer needed


@needs_compiler
def test_a_damaged_library_is_built_anew(cache_dir):
    """A full disk or a crash of the machine can leave a file that is there and cannot be loaded."""
    path = load_library(level(), cache_dir).path
    library._load.cache_clear()
    target = cache_dir / "other"
    target.mkdir()
    (target / path.name).write_bytes(b"not a library")
    built = load_library(level(), target)
    assert answer_of(built) == 42
    assert built.build_seconds is not None


def test_the_cache_follows_the_users_environment(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_cache_dir() == Path("/x/stoker/kernels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_cache_dir() == Path("/home/me/.cache/stoker/kernels")
    monkeypatch.delenv("HOME")
    assert default_cache_dir() is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_second_openmp_runtime_is_loaded():
    """Two pools of spinning threads on the same cores cost more than the kernels bring."""
    code = (
        "import torch\n"
        "from stoker.engine.kernels import select_kernels\n"
        "before = {line.split()[-1] for line in open('/proc/self/maps') if 'omp' in line}\n"
        "select_kernels('cpu', torch.float32, 64)\n"
        "after = {line.split()[-1] for line in open('/proc/self/maps') if 'omp' in line}\n"
        "assert before == after, after - before\n"
    )
    root = Path(__file__).parents[5]
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=root, env=os.environ | {"PYTHONPATH": str(root / ".dev")}
    )


@pytest.mark.parametrize("tensor", [torch.zeros(2, 4, dtype=torch.bfloat16), torch.zeros(4, 4)[:, :2]])
def test_a_kernel_gets_no_address_of_other_numbers(tensor):
    with pytest.raises(ValueError, match=r"^expected contiguous numbers of torch\.float32, got "):
        library.pointer(tensor, torch.float32)
