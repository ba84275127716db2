"""Whether a process of this machine is stopped, by SIGSTOP or a debugger. Of Linux only."""

from __future__ import annotations

from pathlib import Path


class StoppedWatch:
    """A process that is stopped in two calls one after the other."""

    def __init__(self, pid: int | None) -> None:
        self._pid, self._count = pid, 0

    def is_stopped(self) -> bool:
        self._count = self._count + 1 if _is_stopped(self._pid) else 0
        return self._count > 1


def _is_stopped(pid: int | None) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return False
    return state in ("T", "t")
