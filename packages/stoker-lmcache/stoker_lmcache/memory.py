"""LmcacheMemory: the shared memory in which an LMCache server keeps blocks, and clients of the same machine read and
write them.

It is read and written like a file, not mapped: if the server shrinks it meanwhile, that is an error and not a signal.
"""

from __future__ import annotations

import os
from typing import Any

from .requests import LmcacheUnavailable, field

_FOLDER = "/dev/shm/"


class LmcacheMemory:
    """Open within `with`: memory of a server that has ended takes no room because an engine has it open."""

    def __init__(self, name: Any, num_bytes: Any) -> None:
        """name, num_bytes: as the server says. Raises LmcacheUnavailable."""
        if not name or not isinstance(name, str) or not isinstance(num_bytes, int):
            raise LmcacheUnavailable("it has no shared memory: start it with --shm-name and --no-l1-use-lazy")
        self._name, self._num_bytes = name.removeprefix("/"), num_bytes
        if "/" in self._name:
            raise LmcacheUnavailable(f"its shared memory has no valid name: {name[:100]!r}")
        self._file = -1
        self._inode: int | None = None
        with self:
            self._inode = os.fstat(self._file).st_ino

    def __enter__(self) -> None:
        """Raises LmcacheUnavailable."""
        try:
            self._file = os.open(_FOLDER + self._name, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            reason = "it must run on this machine, as this user, and containers must share /dev/shm"
            raise LmcacheUnavailable(f"its shared memory cannot be opened: {error}; {reason}") from error
        if self._inode not in (None, os.fstat(self._file).st_ino):
            os.close(self._file)
            raise LmcacheUnavailable("it has started again")

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def read(self, slot: Any, num_bytes: int) -> memoryview:
        """The first bytes of a slot. Raises OSError."""
        offset = self._offset(slot, num_bytes)
        data = bytearray(num_bytes)
        view = memoryview(data)
        position = 0
        while position < num_bytes:
            num_read = os.preadv(self._file, [view[position:]], offset + position)
            if not num_read:
                raise LmcacheUnavailable("its shared memory is smaller than it says")
            position += num_read
        return view

    def write(self, slot: Any, *parts: bytes | memoryview) -> None:
        """Raises OSError."""
        offset = self._offset(slot, sum(map(len, parts)))
        for part in parts:
            view = memoryview(part)
            while view:
                num_written = os.pwrite(self._file, view, offset)
                offset += num_written
                view = view[num_written:]

    def _offset(self, slot: Any, num_bytes: int) -> int:
        """Raises LmcacheUnavailable if the slot is not for a block of this size."""
        offset, length = field(slot, "offset"), field(slot, "length")
        if not isinstance(offset, int) or length != num_bytes or not 0 <= offset <= self._num_bytes - num_bytes:
            raise LmcacheUnavailable(f"a slot of {length} bytes at {offset} does not hold a block of {num_bytes}")
        return offset
