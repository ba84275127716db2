"""Finds in /proc the process that listens on a TCP port, for the message that the port is in use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_PROC = Path("/proc")
_LISTEN = "0A"  # a state in /proc/net/tcp: include/net/tcp_states.h of Linux


def port_owner(port: int, proc: Path = _PROC) -> tuple[int, str] | None:
    """Id and name of a process. None if it cannot be found: it belongs to another user, or does not listen yet."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port, proc)}
    for folder in proc.glob("[0-9]*") if sockets else ():
        with contextlib.suppress(OSError):  # it has ended, or is not ours
            if any(os.readlink(fd) in sockets for fd in (folder / "fd").iterdir()):
                return int(folder.name), (folder / "comm").read_text().strip()
    return None


def _listening(port: int, proc: Path) -> set[str]:
    """Inodes of the sockets that listen on a port, of any address."""
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / "net" / name).read_text().splitlines()[1:]:
                _, local, _, state, *fields = line.split()
                if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                    found.add(fields[5])
    return found
