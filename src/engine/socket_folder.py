"""A private folder for unix sockets, which does not outlive its owner for long, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

PREFIX = "stoker-sockets-"
MAX_BASE_CHARS = 72  # a unix socket's path holds 107
_LOCK = ".stoker-engine"


class SocketFolder:
    """Readable by its owner only (0700). Held by a lock, so that what a killed process left can be told and removed."""

    def __init__(self, base: str | None = None) -> None:
        """Make one, and remove those that nobody holds any more. Raises OSError if it cannot be made or locked."""
        base = base or tempfile.gettempdir()
        if len(base) > MAX_BASE_CHARS:
            base = "/tmp"
        _remove_abandoned(Path(base))
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
            try:
                held = _hold(self.path, os.O_CREAT)
            except OSError:
                _remove(self.path)
                raise
            if held is not None:
                break  # else another start took it for abandoned before it was locked
        self._lock: int | None = held

    def remove(self) -> None:
        """May be called again."""
        if self._lock is not None:
            _remove(self.path)
            os.close(self._lock)
            self._lock = None


def _hold(folder: Path, flags: int = 0) -> int | None:
    """Lock a folder as its only holder. None if it is held, is gone, or is no folder of ours; other OSErrors are the
    machine's (no descriptors left, no locks here) and are raised."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(folder / _LOCK)  # still there: it was not removed between the two lines above
    except (BlockingIOError, FileNotFoundError):
        os.close(lock)
        return None
    except OSError:
        os.close(lock)
        raise
    return lock


def _remove(folder: Path) -> None:
    """The sockets, the lock and the folder, if it holds nothing else."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            if entry.is_socket() or entry.name == _LOCK:
                entry.unlink()
        folder.rmdir()


def _remove_abandoned(base: Path) -> None:
    with contextlib.suppress(OSError):
        for folder in base.glob(f"{PREFIX}*"):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            lock = _hold(folder)
            if lock is not None:
                _remove(folder)
                os.close(lock)
