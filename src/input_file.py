"""Opens and reads files that a deployment, a model or a command line names.

Such a name may lead to anything: opening a named pipe waits for a writer, reading a device may never end, and a file of
/proc may be larger than its size says. So only regular files are opened, and no more than a given size is read.
Everything that is wrong is an OSError whose `strerror` can be shown to the user.
"""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from typing import BinaryIO

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOCTTY", 0)
_NON_BLOCKING = getattr(os, "O_NONBLOCK", 0)  # for a pipe that replaces the file between stat and open


def open_file(path: str | os.PathLike[str], *, may_be_pipe: bool = False) -> FileIO:
    """An unbuffered stream of a regular file.

    may_be_pipe: also of a pipe, as in `engine validate <(make-manifest)`; one without a writer is empty.
    Raises OSError; ValueError for a name with a null character.
    """
    _check(os.stat(path), may_be_pipe, path)  # before it is opened: opening a device may change its state
    descriptor = os.open(path, _FLAGS | _NON_BLOCKING)
    try:
        _check(os.fstat(descriptor), may_be_pipe, path)
        os.set_blocking(descriptor, True)
        return FileIO(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: str | os.PathLike[str], at_most: int, *, may_be_pipe: bool = False) -> bytes:
    """The content of a file of at most `at_most` bytes. Raises what `open_file` raises, and FileTooLarge."""
    with open_file(path, may_be_pipe=may_be_pipe) as stream:
        return read_stream(stream, at_most)


def read_stream(stream: BinaryIO | FileIO, at_most: int) -> bytes:
    """The rest of a stream, whatever size it claims to have. Raises OSError, and FileTooLarge."""
    content = bytearray()
    while len(content) <= at_most:
        part = stream.read(min(1 << 20, at_most + 1 - len(content)))
        if not part:
            return bytes(content)
        content += part
    raise FileTooLarge(at_most)


class FileTooLarge(OSError):
    """The file has more bytes than are read."""

    def __init__(self, at_most: int) -> None:
        unit, name = (1 << 20, "MiB") if at_most >= 1 << 20 else (1 << 10, "KiB")
        super().__init__(errno.EFBIG, f"larger than {at_most // unit} {name}")


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raises OSError for what is not a regular file."""
    _check(os.stat(path), False, path)


def _check(status: os.stat_result, may_be_pipe: bool, path: str | os.PathLike[str]) -> None:
    mode = status.st_mode
    if stat.S_ISREG(mode) or (may_be_pipe and stat.S_ISFIFO(mode)):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "of an unknown kind")
    raise OSError(errno.EINVAL, f"{kind}, not a regular file", os.fspath(path))
