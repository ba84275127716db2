"""Scratch: a temporary folder and the compilers that work in it. Neither outlives this process, however it ends.

Standard library only, as build.py.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

# Reads from a pipe that gets no bytes: this ends when its other end is closed, or this process is killed. Then it
# ends its process group, which the compilers belong to, and removes the folder; again if one was writing meanwhile.
_WATCH = """
trap '' TERM INT HUP
read -r _
kill -TERM 0
for _ in 1 2 3 4 5 6 7 8 9; do rm -rf -- "$1" && break; sleep 0.1; done
"""


class Scratch:
    """A new folder, and a watcher that removes it. `with` removes both at the end of the block.

    The watcher and the compilers are a separate process group, so that a compiler and the programs it starts are
    ended together; Ctrl-C in a terminal reaches only this process.
    """

    def __init__(self, parent: Path, prefix: str, suffix: str = "") -> None:
        """Raises OSError if the folder or the watcher cannot be made."""
        self.folder = parent.absolute() / f"{prefix}{secrets.token_hex(4)}{suffix}"
        self._watcher = subprocess.Popen(  # before the folder, which is removed even if this process is killed now
            ["/bin/sh", "-c", _WATCH, "stoker-scratch", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            process_group=0,
        )
        try:
            self.folder.mkdir(mode=0o700, parents=True)
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the compilers and remove the folder."""
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        self._watcher.wait()
        shutil.rmtree(self.folder, ignore_errors=True)  # if the watcher was killed

    def run(self, command: Sequence[str], folder: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a compiler in `folder`, its temporary files in the scratch folder.

        Raises subprocess.TimeoutExpired, and OSError if it cannot be started.
        """
        return subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "TMPDIR": str(self.folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            process_group=self._watcher.pid,
        )
