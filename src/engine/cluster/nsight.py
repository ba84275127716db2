"""Ranks under Nsight Systems: `nsys profile` starts the process of a rank, and writes a report when it has ended.

`python -m stoker.engine.cluster.nsight nsys profile ...` is between the actor and `nsys`, because of the end: the actor
is killed with the engine, Ray kills the children and the process group of an actor, and a report takes some seconds.
The rank ends when the actor does, as its socket is closed; `nsys` goes on, in its own session.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


class NsightMissing(OSError):
    """`nsys` is not in the PATH of this machine."""


def under_nsight(command: Sequence[str], rank: int) -> list[str]:
    """The command that profiles `command`. Raises NsightMissing, or OSError if the folder of reports cannot be made."""
    nsys = shutil.which("nsys")
    if nsys is None:
        host = socket.gethostname()
        raise NsightMissing(
            f"`parallel.ray_workers_use_nsight` needs `nsys`, which is not in the PATH of Ray on {host}"
        )
    folder = Path(tempfile.gettempdir(), f"stoker-nsight-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    between = [sys.executable, "-m", f"{__package__}.nsight"]
    return [*between, nsys, "profile", "--trace=osrt,nvtx", f"--output={folder}/rank-{rank}-%p", *command]


def main(words: Sequence[str]) -> int:
    """Runs the command with the descriptors of this process. Returns its exit code."""
    code = subprocess.run(words, close_fds=False, start_new_session=True, check=False).returncode
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
