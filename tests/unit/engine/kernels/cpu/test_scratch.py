"""Compilers and their files end with the process that started them, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from stoker.engine.kernels.cpu import build
from stoker.engine.kernels.cpu.build import SCRATCH_SUFFIX, compile_into_cache
from stoker.engine.kernels.cpu.scratch import Scratch

from .tiny_library import needs_compiler, spec, tiny_sources

__all__ = ["tiny_sources"]
LIMIT_S = 60.0
# A compiler that starts another program and waits for it, as gcc does.
COMPILER = ["/bin/sh", "-c", 'echo made > "$TMPDIR/file"; sleep 600 & echo $! > "$TMPDIR/pid"; wait']
OWNER = """
import sys, threading, time
from pathlib import Path
from stoker.engine.kernels.cpu.scratch import Scratch
scratch = Scratch(Path(sys.argv[1]), "of-")
threading.Thread(target=scratch.run, args=(sys.argv[2:], Path("/"), 600.0), daemon=True).start()
while not (scratch.folder / "pid").exists() or not (scratch.folder / "pid").read_text().strip():
    time.sleep(0.01)
print(scratch.folder, flush=True)
time.sleep(600)
"""


def is_gone(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        process.wait(LIMIT_S)  # also of a process that is not our child
    except psutil.NoSuchProcess:
        pass
    except psutil.TimeoutExpired:
        return process.status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_end_of_the_process_ends_the_compilers_and_removes_the_folder(tmp_path: Path, number: signal.Signals):
    """A stop while kernels were compiled left the compilers running, and each start that was tried again added some."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), *COMPILER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    inner = int((folder / "pid").read_text())
    watcher = next(each for each in psutil.process_iter(["cmdline"]) if str(folder) in (each.info["cmdline"] or []))
    assert psutil.Process(inner).is_running()
    owner.send_signal(number)
    owner.wait()
    owner.stdout.close()
    assert is_gone(inner)
    assert is_gone(watcher.pid)
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_the_block_ends_a_compiler_that_still_runs(tmp_path: Path):
    codes: list[int] = []
    with Scratch(tmp_path, "a-", ".b") as scratch:
        assert scratch.folder.name.startswith("a-")
        assert scratch.folder.suffix == ".b"
        assert scratch.folder.stat().st_mode & 0o777 == 0o700
        work = threading.Thread(target=lambda: codes.append(scratch.run(COMPILER, Path("/"), LIMIT_S).returncode))
        work.start()
        while not (scratch.folder / "pid").exists():
            pass
    work.join()
    assert codes == [-signal.SIGTERM]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_removed_although_its_watcher_was_killed(tmp_path: Path):
    with Scratch(tmp_path, "a-") as scratch:
        os.kill(scratch._watcher.pid, signal.SIGKILL)
        scratch._watcher.wait()
    assert list(tmp_path.iterdir()) == []


@needs_compiler
@pytest.mark.usefixtures("tiny_sources")
def test_the_next_compilation_removes_folders_that_nobody_uses(tmp_path: Path):
    """Those of killed processes whose watcher was killed too, such as all processes of a container."""
    stem = spec().file_name.removesuffix(".so")
    left = [tmp_path / f"{stem}.1{SCRATCH_SUFFIX}", tmp_path / f"older-key.2{SCRATCH_SUFFIX}"]
    used = tmp_path / f"other-key.3{SCRATCH_SUFFIX}"
    for folder in (*left, used):
        folder.mkdir()
        (folder / "1.o").touch()
    build._lock_of(tmp_path, "older-key.so").touch()
    with open(build._lock_of(tmp_path, "other-key.so"), "w") as lock:
        build.fcntl.flock(lock, build.fcntl.LOCK_EX)
        compile_into_cache(spec(), tmp_path, lambda _: None)
    assert [folder.exists() for folder in (*left, used)] == [False, False, True]
