"""Listening unix sockets that only one other process can use, and of which nothing is left when both have ended.

They have paths only until their clients have connected, in a folder that only this user can open; the process that
accepts inherits the descriptors. (Abstract sockets, which Linux has, have no permissions.)
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...temporary_folder import temporary_folder

PREFIX = "stoker-sockets-"
MAX_BASE_CHARS = 64  # the path of a unix socket has at most 107: "/", the folder (23), "/" and a number


@contextlib.contextmanager
def brief_paths(sockets: Sequence[socket.socket], base: str | None = None) -> Iterator[list[Path]]:
    """Let unix sockets listen; their paths exist until the end of the block. Raises OSError."""
    base = base or tempfile.gettempdir()
    with temporary_folder(PREFIX, base if len(base) <= MAX_BASE_CHARS else "/tmp") as folder:
        paths = [folder / str(number) for number in range(len(sockets))]
        for listener, path in zip(sockets, paths, strict=True):
            listener.bind(str(path))
            listener.listen(1)
        yield paths
