"""What the API processes of one deployment have in common: the use of keys, the cache epoch, and what each one serves.

The numbers are in a small file without a name that all of them map into their memory. A deployment with one API process
has them in its own memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import tempfile
from collections.abc import Iterator

from .key_usage import RUNNING, Row
from .keys_file import MAX_NAMES

_EPOCH, _FIRST_LIVE = 0, 1  # places of numbers before the rows
_NUM_ROWS = 4 * MAX_NAMES  # also for names that were removed from the file while the server runs
_NUMBER_BYTES = 6  # of the digest of a name: a float represents such a number exactly


class SharedState:
    def __init__(self, num_processes: int = 1, *, process: int = 0, fd: int | None = None) -> None:
        """
        process: the index of this process, of `num_processes`.
        fd: of the file, in the processes that inherit it; None creates the numbers, all zero.
        """
        self.process = process
        self.num_processes = num_processes
        self._width = 1 + RUNNING + num_processes  # the number of a name, then its row
        self._first_row = _FIRST_LIVE + num_processes
        size = 8 * (self._first_row + _NUM_ROWS * self._width)
        if fd is None and num_processes > 1:
            fd, path = tempfile.mkstemp(prefix="stoker-shared-")  # open as long as this process
            os.unlink(path)
            os.ftruncate(fd, size)
        self.fd = -1 if fd is None else fd
        self._numbers: Row = memoryview(mmap.mmap(self.fd, size)).cast("d")

    @property
    def epoch(self) -> int:
        """Requests share prefixes only with requests of the same epoch."""
        return int(self._numbers[_EPOCH])

    def next_epoch(self) -> None:
        with self._locked():
            self._numbers[_EPOCH] += 1

    @property
    def num_live(self) -> int:
        """Completions that run in all processes."""
        return int(sum(self._numbers[_FIRST_LIVE : self._first_row]))

    def set_live(self, num_live: int) -> None:
        """Completions that run in this process."""
        self._numbers[_FIRST_LIVE + self.process] = num_live

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[Row]:
        with self._locked():
            yield self._row(name)

    def forget(self, process: int) -> None:
        """A process has ended, and with it the requests that it served."""
        with self._locked():
            self._numbers[_FIRST_LIVE + process] = 0
            for place in range(self._first_row, len(self._numbers), self._width):
                self._numbers[place + 1 + RUNNING + process] = 0

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if self.fd < 0:
            yield
            return
        fcntl.lockf(self.fd, fcntl.LOCK_EX)  # excludes other processes; in each, one thread uses the numbers
        try:
            yield
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def _row(self, name: str) -> Row:
        number = 1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:_NUMBER_BYTES], "big")  # 0: a free row
        for attempt in range(_NUM_ROWS):
            place = self._first_row + (number + attempt) % _NUM_ROWS * self._width
            if self._numbers[place] in (0, number):
                self._numbers[place] = number
                return self._numbers[place + 1 : place + self._width]
        raise RuntimeError(f"more than {_NUM_ROWS} names of keys since the start")
