"""SocketFolder: a private folder for unix sockets. The next start removes those of killed processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

PREFIX = "stoker-sockets-"
MAX_BASE_CHARS = 64  # the path of a unix socket has at most 107: "/", the folder (23), "/" and a name (up to 18)
_LOCK = ".stoker-engine"


class SocketFolder:
    """Readable by its owner only (0700). Locked, so that a folder whose process was killed can be found and removed."""

    def __init__(self, base: str | None = None) -> None:
        """Make a folder, and remove those that are no longer locked. Raises OSError if it cannot be made or locked."""
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
                break  # else another start removed it as abandoned before it was locked
        self._lock: int | None = held

    def remove(self) -> None:
        """May be called more than once."""
        if self._lock is not None:
            _remove(self.path)
            os.close(self._lock)
            self._lock = None


def _hold(folder: Path, flags: int = 0) -> int | None:
    """Lock a folder. None if another process holds it, it does not exist, or is not a SocketFolder.

    Raises other OSErrors: no file descriptors left, no locks on this file system.
    """
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(folder / _LOCK)  # it was not removed between the two lines above
    except (BlockingIOError, FileNotFoundError):
        os.close(lock)
        return None
    except OSError:
        os.close(lock)
        raise
    return lock


def _remove(folder: Path) -> None:
    """Remove the sockets, the lock and then the folder, if it is empty."""
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
