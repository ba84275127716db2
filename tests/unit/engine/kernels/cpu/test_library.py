"""Finding, compiling and loading, with sources small enough to compile in a moment."""

import errno
import logging
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from stoker.config.cpu_features import NoKernels, find_compiler
from stoker.config.cpu_library import find_library
from stoker.engine.kernels.cpu import library
from stoker.engine.kernels.cpu.build import compile_into_cache, compile_libraries
from stoker.engine.kernels.cpu.library import is_loadable, load_library

from .tiny_library import needs_compiler, spec, tiny_sources

__all__ = ["tiny_sources"]
pytestmark = pytest.mark.usefixtures("tiny_sources")


@pytest.fixture
def cache_dir(tmp_path):
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def num_compiled(tmp_path, monkeypatch):
    """The number of files compiled so far. A script that counts them calls the real compiler."""
    log = tmp_path / "calls"
    log.touch()
    script = tmp_path / "counting-c++"
    script.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*) echo >>{log};; esac\nexec {find_compiler()} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return lambda: len(log.read_text())


def answer_of(loaded, name="answer"):
    return loaded.function(name, [], library.INT)()


def forget():
    """As in a new process."""
    library._loaded.clear()


@needs_compiler
def test_a_library_is_compiled_once_and_then_found(cache_dir, num_compiled, caplog):
    first = load_library(spec(), cache_dir)
    assert first.compile_seconds is not None
    forget()
    second = load_library(spec(), cache_dir)
    assert second.compile_seconds is None
    assert second.path == first.path
    assert answer_of(first) == answer_of(second) == 42
    assert num_compiled() == 2  # threads.cpp and answer.cpp, without quantise.cpp
    assert sorted(path.suffix for path in cache_dir.iterdir()) == [".lock", ".so"]
    ours = [each.getMessage() for each in caplog.records if each.name.endswith("cpu.library")]
    assert ours == ["compiling the C++ kernels tiny, once for this version: about half a minute"]


@needs_compiler
def test_only_a_library_with_quantised_kernels_has_them(cache_dir):
    with pytest.raises(AttributeError):
        answer_of(load_library(spec(), cache_dir), "quantised_answer")
    assert answer_of(load_library(spec(has_quantised=True), cache_dir), "quantised_answer") == 420


@needs_compiler
def test_other_flags_or_sources_make_another_library(cache_dir, tiny_sources):
    loaded = [
        load_library(spec(1), cache_dir),
        load_library(spec(2), cache_dir),
        load_library(spec(1, True), cache_dir),
    ]
    source = tiny_sources / "answer.cpp"
    source.write_text(source.read_text().replace("ANSWER;", "ANSWER + 10;"))
    forget()
    loaded.append(load_library(spec(1), cache_dir))
    assert [answer_of(each) for each in loaded] == [1, 2, -1, 11]


@needs_compiler
def test_a_library_in_the_package_needs_no_compiler_and_no_cache(tiny_sources, monkeypatch):
    prebuilt = tiny_sources / "prebuilt"
    prebuilt.mkdir()
    (made,) = compile_libraries([spec(has_quantised=True)], prebuilt, lambda _: None)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    for wanted in (spec(), spec(has_quantised=True)):  # one file for both
        assert is_loadable(wanted)
        loaded = load_library(wanted)
        assert (loaded.path, loaded.compile_seconds, answer_of(loaded)) == (made, None, 42)
    assert not is_loadable(spec(is_batch_invariant=True))


@needs_compiler
def test_a_library_in_the_package_of_older_sources_is_not_loaded(tiny_sources, cache_dir):
    """In an editable install the sources change under the compiled files."""
    prebuilt = tiny_sources / "prebuilt"
    prebuilt.mkdir()
    compile_libraries([spec()], prebuilt, lambda _: None)
    (tiny_sources / "batch_invariant.h").write_text("#pragma once\n// edited\n")
    loaded = load_library(spec(), cache_dir)
    assert loaded.compile_seconds is not None
    assert loaded.path.parent == cache_dir


@needs_compiler
def test_processes_that_start_together_compile_once(cache_dir, num_compiled):
    """Threads in place of processes: each opens the lock file itself, as a process does."""
    cache_dir.mkdir(parents=True, mode=0o700)
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: compile_into_cache(spec(), cache_dir, lambda _: None), "1234"))
    assert len(set(paths)) == 1
    assert num_compiled() == 2


@needs_compiler
def test_the_error_of_a_broken_source_is_the_compilers(cache_dir, tiny_sources):
    (tiny_sources / "answer.cpp").write_text("int answer() { return 42 }")
    with pytest.raises(NoKernels, match=r"^the kernels could not be compiled: answer\.cpp:1.*error"):
        load_library(spec(), cache_dir)
    assert [path.suffix for path in cache_dir.iterdir()] == [".lock"]  # no partial result is left


def test_a_missing_compiler_is_named(monkeypatch, cache_dir):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NoKernels, match=r"^no C\+\+ compiler found \(looked for no-such-compiler\)$"):
        load_library(spec(), cache_dir)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoKernels, match=r"^no C\+\+ compiler found \(looked for c\+\+, g\+\+, clang\+\+\)$"):
        load_library(spec(), cache_dir)


def test_a_compiler_that_fails_without_a_message_is_an_error(monkeypatch, cache_dir):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(NoKernels, match=r"^the kernels could not be compiled: no message$"):
        load_library(spec(), cache_dir)


@needs_compiler
def test_a_failing_disk_is_a_reason_and_not_a_crash(cache_dir, monkeypatch):
    def no_space(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(NoKernels, match=r"^the kernels cannot be compiled in .*No space left on device$"):
        load_library(spec(), cache_dir)


@needs_compiler
def test_without_a_writable_cache_a_private_folder_is_used_and_removed(tmp_path, caplog):
    (tmp_path / "file").touch()  # no folder can be made below a file, not even by root
    loaded = load_library(spec(), tmp_path / "file" / "cache")
    assert answer_of(loaded) == 42
    assert loaded.path.parent.name.startswith("stoker-kernels-")
    assert not loaded.path.parent.exists()  # the library stays loaded
    assert "C++ kernels are not cached: " in caplog.text


@needs_compiler
@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_cache_that_others_can_write_to_is_not_used(cache_dir, mode, caplog):
    """Another user could put a library there, which would run in this process."""
    path = load_library(spec(), cache_dir).path
    forget()
    cache_dir.chmod(mode)
    assert find_library(spec(), cache_dir) is None
    loaded = load_library(spec(), cache_dir)
    assert answer_of(loaded) == 42
    assert loaded.path.parent not in (cache_dir, path.parent)
    assert "other users can write to it" in caplog.text


@needs_compiler
def test_a_library_that_others_can_write_to_is_not_loaded(cache_dir):
    path = load_library(spec(), cache_dir).path
    forget()
    path.chmod(0o777)
    assert find_library(spec(), cache_dir) is None
    assert load_library(spec(), cache_dir).compile_seconds is not None
    assert path.stat().st_mode & 0o777 == 0o755  # replaced


@needs_compiler
def test_the_umask_does_not_make_a_library_unusable(cache_dir):
    """With umask 002, the default of many systems, the linker's file can be written by the group."""
    before = os.umask(0o002)
    try:
        path = load_library(spec(), cache_dir).path
    finally:
        os.umask(before)
    assert find_library(spec(), cache_dir) == path
    assert cache_dir.stat().st_mode & 0o777 == 0o700


@needs_compiler
def test_a_damaged_library_is_compiled_again(cache_dir, tmp_path, caplog):
    """A full disk or a crash of the machine can leave a file that cannot be loaded."""
    path = load_library(spec(), cache_dir).path
    target = tmp_path / "other"
    target.mkdir(mode=0o700)
    shutil.copy(path, target)
    (target / path.name).write_bytes(b"not a library")
    with caplog.at_level(logging.WARNING):
        loaded = load_library(spec(), target)
    assert answer_of(loaded) == 42
    assert loaded.compile_seconds is not None
    assert "cannot be loaded and is compiled again" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_no_second_openmp_runtime_is_loaded():
    """Two pools of spinning threads on the same cores cost more than the kernels gain."""
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
def test_a_kernel_gets_no_address_of_another_type_or_layout(tensor):
    with pytest.raises(ValueError, match=r"^expected contiguous elements of torch\.float32, got "):
        library.pointer(tensor, torch.float32)
