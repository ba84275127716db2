"""Temporary folders that are removed with their process. A later process removes those of processes that were killed.

The process holds a lock on its folder, which the kernel releases however the process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

YOUNGEST_S = 60  # a folder that was just made may not be locked yet


@contextlib.contextmanager
def temporary_folder(prefix: str, base: str | None = None) -> Iterator[Path]:
    """A folder that only this user can open, until the end of the block. Raises OSError."""
    base = base or tempfile.gettempdir()
    _remove_abandoned(prefix, base)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(prefix: str, base: str) -> None:
    with contextlib.suppress(OSError):
        for entry in os.scandir(base):
            if entry.name.startswith(prefix):
                with contextlib.suppress(OSError):
                    _remove_if_unlocked(entry)


def _remove_if_unlocked(entry: os.DirEntry[str]) -> None:
    found = entry.stat(follow_symlinks=False)
    if found.st_uid != os.getuid() or time.time() - found.st_mtime < YOUNGEST_S:
        return
    lock = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError while its process runs
        shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(lock)
