"""Reads bytes of weight files: tensor by tensor, or a whole file at a time.

Large tensors are mapped where possible, one at a time: reading would copy them once more, into newly allocated memory.
A map is released together with its tensor, because its pages count as memory of the process.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from ...config import ModelFilesError
from ...config.checkpoint.stored import StoredTensor
from ...input_file import open_file

_POPULATE_READ = 22  # MADV_POPULATE_READ, since Linux 5.14


class ByteReader(Protocol):
    def read(self, file: Path, offset: int, into: memoryview, name: str) -> None:
        """Fills `into` with the bytes that begin at `offset`. name: of the tensor, for messages."""
        ...

    def map(self, file: Path, offset: int, size: int) -> memoryview | None:
        """The bytes as a map of the file, with all pages resident; None if they must be read."""
        ...

    def done(self, file: Path) -> None:
        """Call once per tensor of the file, when it is loaded."""
        ...


class LazyReader:
    """Reads each tensor when it is requested."""

    def read(self, file: Path, offset: int, into: memoryview, name: str) -> None:
        try:
            with open_file(file) as stream:
                stream.seek(offset)
                _fill(stream.readinto, into, file, f" tensor `{name}`")
        except OSError as error:
            raise ModelFilesError.unreadable(file, error) from error

    def map(self, file: Path, offset: int, size: int) -> memoryview | None:
        before = offset % mmap.ALLOCATIONGRANULARITY
        try:
            with open_file(file) as stream:
                # Copy on write: torch requires writable memory, and no code writes to it.
                pages = mmap.mmap(stream.fileno(), before + size, access=mmap.ACCESS_COPY, offset=offset - before)
            pages.madvise(_POPULATE_READ)  # a broken disk raises here; at a later access it would end the process
        except (OSError, ValueError):  # `read` will raise the error, if there is one
            return None
        return memoryview(pages)[before:]

    def done(self, file: Path) -> None:
        pass


class EagerReader:
    """Reads each file as a whole when its first tensor is requested, and keeps it until the last has been read."""

    def __init__(self, tensors: Iterable[StoredTensor]) -> None:
        self._lock = threading.Lock()
        self._left: dict[Path, int] = {}
        self._locks: dict[Path, threading.Lock] = {}
        self._whole: dict[Path, bytearray] = {}
        for tensor in tensors:
            self._left[tensor.file] = self._left.get(tensor.file, 0) + 1
            self._locks.setdefault(tensor.file, threading.Lock())

    def read(self, file: Path, offset: int, into: memoryview, name: str) -> None:
        whole = self._content(file)
        if offset + len(into) > len(whole):
            raise ModelFilesError(f"{file}: cut short while reading tensor `{name}`", code="M303")
        into[:] = memoryview(whole)[offset : offset + len(into)]

    def map(self, file: Path, offset: int, size: int) -> None:
        """Returns None: the file is read as a whole."""

    def done(self, file: Path) -> None:
        with self._lock:
            self._left[file] -= 1
            if not self._left[file]:
                self._whole.pop(file, None)

    def _content(self, file: Path) -> bytearray:
        with self._locks[file]:
            if file not in self._whole:
                try:
                    with open_file(file) as stream:
                        whole = bytearray(os.fstat(stream.fileno()).st_size)
                        _fill(stream.readinto, memoryview(whole), file, "")
                except OSError as error:
                    raise ModelFilesError.unreadable(file, error) from error
                self._whole[file] = whole
            return self._whole[file]


class _ReadInto(Protocol):
    def __call__(self, buffer: memoryview, /) -> int | None: ...


def _fill(read_into: _ReadInto, into: memoryview, file: Path, what: str) -> None:
    """what: words of a message that follow `while reading`; empty for the whole file."""
    done = 0
    while done < len(into):
        count = read_into(into[done:])
        if not count:
            raise ModelFilesError(f"{file}: cut short while reading{what}", code="M303")
        done += count
