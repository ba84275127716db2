"""A private folder for unix sockets, which does not outlive its owner for long, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "stoker-"
MAX_BASE_CHARS = 80  # a unix socket's path holds 107
_LOCK = "lock"


class SocketFolder:
    """Readable by its owner only (0700). Held by a lock, so that what a killed process left can be told and removed."""

    def __init__(self, base: str | None = None) -> None:
        """Make one, and remove those that nobody holds any more."""
        base = base or tempfile.gettempdir()
        if len(base) > MAX_BASE_CHARS:
            base = "/tmp"
        _remove_abandoned(Path(base))
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
            held = _hold(self.path, os.O_CREAT)
            if held is not None:
                break  # else another start took it for abandoned before it was locked
        self._lock: int | None = held

    def remove(self) -> None:
        """May be called again."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _hold(folder: Path, flags: int = 0) -> int | None:
    """Lock a folder as its only holder. None if it is held, or is no folder of ours."""
    lock: int | None = None
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(folder / _LOCK)  # still there: it was not removed between the two lines above
    except OSError:
        if lock is not None:
            os.close(lock)
        return None
    return lock


def _remove_abandoned(base: Path) -> None:
    with contextlib.suppress(OSError):
        for folder in base.glob(f"{PREFIX}*"):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            lock = _hold(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
