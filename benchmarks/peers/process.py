"""A contestant's process: starts it, sends requests, measures memory and CPU time, ends it with its children.

Memory is the private pages of its processes, including pages of memory-mapped model files.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from .environments import ROOT, exit_reason

POLL_S = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """The message is the reason, in one line."""


class Process:
    """Runs `command` in a separate session, which identifies all its children."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("w") as err:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                start_new_session=True,
            )
        self.started = time.perf_counter()
        self.peak_private_bytes = 0
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._watch_memory, daemon=True)
        self._watch.start()

    def ask(self, message: Any, limit_s: float) -> dict[str, Any]:
        """Writes one JSON line and reads one."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise Failed(f"ended: {exit_reason(self.log)}") from None
        return self.answer(limit_s)

    def answer(self, limit_s: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        until, line = time.perf_counter() + limit_s, b""
        while not line.endswith(b"\n"):
            if not select.select([self.process.stdout], [], [], max(0.0, until - time.perf_counter()))[0]:
                raise Failed(f"took more than {limit_s:.0f} s")
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                raise Failed(f"ended with code {self.process.wait()}: {exit_reason(self.log)}")
            line += piece
        self.update_peak_memory()
        try:
            return json.loads(line)
        except ValueError:
            raise Failed(f"answered {line[:100]!r}") from None

    def update_peak_memory(self) -> None:
        """Count all private pages, shared memory and files included. Do not call it while time is measured."""
        self.peak_private_bytes = max(self.peak_private_bytes, private_bytes(self.members()))

    def members(self) -> list[int]:
        """Ids of the live processes of this session, and of children that started another session."""
        parents, found = {}, {self.process.pid}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state, parent, _, session, *_ = _stat(folder)
                if state not in "ZX":
                    parents[int(folder.name)] = int(parent)
                    if session == str(self.process.pid):
                        found.add(int(folder.name))
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return sorted(found & parents.keys())

    def cpu_s(self) -> float:
        """CPU seconds of its live processes."""
        total = 0
        for pid in self.members():
            with contextlib.suppress(OSError):
                total += sum(map(int, _stat(Path(f"/proc/{pid}"))[11:13]))
        return total / _TICKS

    def close(self) -> None:
        self._ended.set()
        self._watch.join()
        all_members = (
            self.members()
        )  # read now: when the first process ends, children with another session lose their parent
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=10)
                break
            self.process.send_signal(sign)
        self.process.wait()
        # no process may run while the next engine is measured
        while orphans := [pid for pid in {*all_members, *self.members()} if _is_alive(pid)]:
            for pid in orphans:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _watch_memory(self) -> None:
        members: list[int] = []
        count = 0
        while not self._ended.wait(POLL_S):
            if count % 8 == 0:  # scanning all of /proc costs more than reading a few files
                members = self.members()
            count += 1
            self.peak_private_bytes = max(self.peak_private_bytes, anonymous_bytes(members))


def anonymous_bytes(pids: list[int]) -> int:
    """Memory that is not backed by files; cheap to read, so it can be sampled during a measurement."""
    return sum(_kib(Path(f"/proc/{pid}/status"), ("RssAnon:",)) for pid in pids) * 1024


def private_bytes(pids: list[int]) -> int:
    """Memory not shared with other processes; the kernel walks page tables, so it is not read during a measurement."""
    return sum(_kib(Path(f"/proc/{pid}/smaps_rollup"), ("Private_Clean:", "Private_Dirty:")) for pid in pids) * 1024


def busy_s() -> float:
    """CPU seconds since boot in which this machine was not idle, including those stolen by its host."""
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS


def _is_alive(pid: int) -> bool:
    try:
        return _stat(Path(f"/proc/{pid}"))[0] not in "ZX"
    except OSError:
        return False


def _kib(path: Path, heads: tuple[str, ...]) -> int:
    try:
        return sum(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(heads))
    except OSError:  # the process has ended
        return 0


def _stat(folder: Path) -> list[str]:
    """Fields of /proc/PID/stat from the third on: state, parent, group, session; user and system time at 11 and 12."""
    return (folder / "stat").read_text().rpartition(")")[2].split()
