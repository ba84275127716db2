"""Server: an `engine up` in its own temporary folder, and everything it left on the machine.

Its first process carries a mark in its environment, which descendants inherit, and a thread looks for further
descendants all the time: so orphans are found wherever they went.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
MARK = "STOKER_ATTACK_MARK"
POLL_S = 0.1
MEMORY_POLL_S = 0.25
MEMORY_LIMIT_MIB = 4096.0  # then it is killed, to protect the machine
MIB = 1 << 20


@dataclass(frozen=True)
class Usage:
    """Resources of all processes of a server."""

    anonymous_mib: float  # not backed by files
    rss_mib: float
    num_fds: int
    num_threads: int
    num_processes: int

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def manifest(model: str = "builtin:tiny", **sections: dict[str, Any]) -> str:
    """The deployment that is attacked. `sections` are added to it."""
    content: dict[str, dict[str, Any]] = {
        "model": {"model": model, "served_model_name": ["tiny"]},
        "cache": {"num_gpu_blocks_override": 1024},
        "scheduler": {"max_num_seqs": 32, "max_num_batched_tokens": 512},
        "device": {"num_threads": 1},
        "server": {"port": 0, "drain_timeout": "2s", "log_level": "warning", "disable_access_log": True},
    }
    for name, section in sections.items():
        content[name] = {**content.get(name, {}), **section}
    return json.dumps(content)


class Server:
    def __init__(
        self,
        folder: Path,
        deployment: str | Path,
        options: tuple[str, ...] = (),
        *,
        max_files: int | None = None,
        environment: dict[str, str] | None = None,
        verb: tuple[str, ...] = ("up",),
    ) -> None:
        """deployment: text of a manifest, or the path of one."""
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        if isinstance(deployment, str):
            (folder / "deploy.yaml").write_text(deployment)
            deployment = folder / "deploy.yaml"
        limit = [] if max_files is None else ["prlimit", f"--nofile={max_files}:{max_files}", "--"]
        command = [*limit, sys.executable, "-m", "stoker", *verb, str(deployment), *options]
        own = {MARK: self.mark, "TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT / ".dev"), "NO_COLOR": "1"}
        self.began = time.monotonic()
        self.peak_anonymous_mib = 0.0
        self.is_killed_for_memory = False
        self._known: dict[int, str] = {}  # process id -> when it started
        self._lock = threading.Lock()
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **own, **(environment or {})},
                start_new_session=True,  # a signal of the terminal reaches the attacker alone
            )
        self._ended = threading.Event()
        self._memory = threading.Thread(target=self._watch_memory, daemon=True)
        self._memory.start()

    @property
    def _out(self) -> Path:
        return self.folder / "out"

    @property
    def _err(self) -> Path:
        return self.folder / "err"

    @property
    def log(self) -> str:
        return self._err.read_text(errors="replace")

    @property
    def url(self) -> str | None:
        """Address of the server; None until it is ready."""
        found = re.search(r"url +(http\S+)/v1", self._out.read_text(errors="replace"))
        return found[1] if found else None

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url or "")
        assert parts.hostname is not None, "not ready"
        assert parts.port is not None
        return parts.hostname, parts.port

    def wait_ready(self, limit_s: float) -> bool:
        """False: it ended, or needed longer."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until and self.process.poll() is None:
            if self.url and "ready in" in self._out.read_text(errors="replace"):
                return True
            time.sleep(POLL_S)
        return False

    def wait(self, limit_s: float) -> int | None:
        """The exit code; None: it still runs."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    def processes(self) -> list[int]:
        """All that run: those with its mark, their descendants, and those that were among them. Stopped ones count."""
        with self._lock:
            return self._find_processes(f"{MARK}={self.mark}".encode())

    def _find_processes(self, mark: bytes) -> list[int]:
        running = {pid: fields for pid in _pids() if (fields := _stat(pid)) and fields[0] not in "ZX"}
        found = {pid for pid, (_, _, began) in running.items() if self._known.get(pid) == began}
        found |= {pid for pid in running.keys() - found if mark in _read(pid, "environ")}
        while more := {pid for pid, (_, parent, _) in running.items() if int(parent) in found} - found:
            found |= more
        self._known = {pid: running[pid][2] for pid in found}
        return sorted(found)

    @property
    def engine(self) -> int | None:
        """Id of the engine process."""
        return next((pid for pid in self.processes() if b"stoker.engine.process" in _read(pid, "cmdline")), None)

    def usage(self) -> Usage:
        anonymous = rss = num_fds = num_threads = 0
        pids = self.processes()
        for pid in pids:
            fields = dict(re.findall(r"^(\w+):\s+(\d+)", _read(pid, "status").decode(), re.MULTILINE))
            anonymous += int(fields.get("RssAnon", 0))
            rss += int(fields.get("VmRSS", 0))
            num_threads += int(fields.get("Threads", 0))
            with contextlib.suppress(OSError):
                num_fds += len(os.listdir(f"/proc/{pid}/fd"))
        return Usage(round(anonymous / 1024, 1), round(rss / 1024, 1), num_fds, num_threads, len(pids))

    def leftovers(self) -> list[str]:
        """Temporary files and folders."""
        return sorted(str(path.relative_to(self.temporary)) for path in self.temporary.rglob("*"))

    def close(self) -> None:
        """Ends every process of it. May be called more than once."""
        self._ended.set()
        self._memory.join()
        self._kill()
        self.process.wait()

    def _kill(self) -> None:
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def _watch_memory(self) -> None:
        while not self._ended.wait(MEMORY_POLL_S):
            self.peak_anonymous_mib = max(self.peak_anonymous_mib, self.usage().anonymous_mib)
            if self.peak_anonymous_mib > MEMORY_LIMIT_MIB:
                self.is_killed_for_memory = True
                self._kill()


def _pids() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)


def _stat(pid: int) -> tuple[str, str, str] | None:
    """State, id of the parent, and when it started."""
    fields = _read(pid, "stat").rpartition(b")")[2].decode().split()
    return (fields[0], fields[1], fields[19]) if len(fields) > 19 else None


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended, or belongs to another user
        return b""
