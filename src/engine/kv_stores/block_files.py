"""BlockFiles: KV cache blocks in files, so that a prefix is not computed again after a restart.

A folder has a sub-folder for each model (`fingerprint`), and there one file per block, named by its hash: the content,
and its CRC-32, begun with the hash. A file is written under another name and renamed, so a name never leads to a part
of a block. What is no regular file of the size of a block is not read. It and a file with a wrong sum are removed, and
their tokens are computed; they are computed, too, while the folder does not answer. Files that were not read for the
longest time are removed when all models' files together exceed the limit.

Several engines may use one folder, also of machines that share it. Each counts the files that it found at its start,
and files that it wrote or read. It looks for files that others wrote since only where a request says that they exist.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from stat import S_ISREG

from ...logs import RareLogger
from ..api import StoredBlocks
from .checksum import SUM_BYTES, checksum
from .future_fetch import FutureFetch
from .waiting_blocks import WaitingBlocks

_SUFFIX = ".kv"
_OLD_PART_S = 3600.0
READ_LIMIT_S = 10.0  # for one block; then nothing is read until that one has been
logger = logging.getLogger(__name__)


class BlockFiles:
    """Implements core/block_store.py."""

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        block_bytes: int,
        max_bytes: int,
        *,
        reads: bool = True,
        writes: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """block_bytes: of each block. max_bytes: of the files of all models in `folder`.

        Raises OSError if the folder cannot be used.
        """
        self._folder, self._fingerprint, self._max_bytes = folder, fingerprint, max_bytes
        self._file_bytes = block_bytes + SUM_BYTES
        self._reads, self._writes, self._clock = reads, writes, clock
        self._reading_since: float | None = None
        self._is_counted_overdue = False
        self._failures, self._unwritten, self._late_reads = (RareLogger(logger) for _ in range(3))
        (folder / fingerprint).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # by path in the folder, least recently used first
        self._num_bytes = 0
        self._waiting = WaitingBlocks()
        self._find_files()
        self._reader = ThreadPoolExecutor(1, "read-blocks")
        self._writer = ThreadPoolExecutor(1, "write-blocks")

    def _find_files(self) -> None:
        found = []
        for path in self._folder.glob("*/*"):
            with contextlib.suppress(OSError):  # another engine may remove files
                stat = path.lstat()
                if path.suffix == _SUFFIX and S_ISREG(stat.st_mode):
                    found.append((stat.st_mtime_ns, f"{path.parent.name}/{path.name}", stat.st_size))
                elif path.suffix == ".part" and stat.st_mtime < time.time() - _OLD_PART_S:
                    path.unlink()
        for _, name, size in sorted(found):
            self._sizes[name] = size
            self._num_bytes += size
        self._make_room(0)

    def _name(self, block_hash: bytes) -> str:
        return f"{self._fingerprint}/{block_hash.hex()}{_SUFFIX}"

    def has(self, block_hash: bytes) -> bool:
        return self._reads and self._has(block_hash) and not self._is_overdue()

    @property
    def num_failures(self) -> int:
        return self._failures.count + self._unwritten.count + self._late_reads.count

    def _is_overdue(self) -> bool:
        """Whether the folder does not answer, such as one on a disk of the network."""
        since = self._reading_since
        is_overdue = since is not None and self._clock() - since > READ_LIMIT_S
        if is_overdue and not self._is_counted_overdue:
            self._late_reads.log(
                logging.WARNING,
                "stored KV blocks could not be read within %g s, their tokens are computed",
                READ_LIMIT_S,
            )
        self._is_counted_overdue = is_overdue
        return is_overdue

    def _has(self, block_hash: bytes) -> bool:
        # in this order: a file is counted before its block waits no longer
        return block_hash in self._waiting or self._name(block_hash) in self._sizes

    def wants(self, block_hash: bytes, *, is_for_others: bool) -> bool:
        return self._writes and not self._touch(block_hash)

    def _touch(self, block_hash: bytes) -> bool:
        """Whether it is there; then it was used now."""
        if block_hash in self._waiting:
            return True
        name = self._name(block_hash)
        with self._lock:
            if name in self._sizes:
                self._sizes.move_to_end(name)
            return name in self._sizes

    def is_saving(self, block_hash: bytes) -> bool:
        return block_hash in self._waiting

    def stored(self, hashes: Sequence[bytes]) -> StoredBlocks:
        return StoredBlocks(tuple(takewhile(self._has, hashes)))

    def fetch(self, hashes: Sequence[bytes], source: StoredBlocks | None) -> FutureFetch:
        return FutureFetch(self._reader.submit(self._read_all, list(hashes)), self._is_overdue)

    def _read_all(self, hashes: list[bytes]) -> list[memoryview]:
        contents = []
        try:
            for block_hash in hashes:
                self._reading_since = self._clock()
                content = self._read(block_hash)
                if content is None:
                    break
                contents.append(content)
        finally:
            self._reading_since = None
        return contents

    def _read(self, block_hash: bytes) -> memoryview | None:
        name = self._name(block_hash)
        path = self._folder / name
        try:
            # O_NONBLOCK: a pipe would wait for its writer.
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(path, flags), "rb", buffering=0) as file:
                stat = os.fstat(file.fileno())
                is_block = S_ISREG(stat.st_mode) and stat.st_size == self._file_bytes
                whole = bytearray(self._file_bytes if is_block else 0)
                num_read = file.readinto(whole) if is_block else 0
        except (OSError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                self._remove_damaged(name)  # a link, a socket, a folder
            elif not isinstance(error, FileNotFoundError):  # it may wait to be written, or another engine removed it
                self._failures.log(
                    logging.WARNING, "a stored KV block cannot be read, its tokens are computed: %s", error
                )
            self._forget(name)
            return None
        view = memoryview(whole)
        content, its_sum = view[:-SUM_BYTES], view[-SUM_BYTES:]
        if not is_block or num_read != len(whole) or bytes(its_sum) != checksum(block_hash, content):
            self._remove_damaged(name)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        with self._lock:
            if name not in self._sizes:  # another engine has written it
                self._sizes[name] = num_read
                self._num_bytes += num_read
            self._sizes.move_to_end(name)
        return content

    def _remove_damaged(self, name: str) -> None:
        path = self._folder / name
        self._failures.log(
            logging.WARNING, "a stored KV block is damaged and is removed, its tokens are computed: %s", path
        )
        with contextlib.suppress(OSError):  # of a folder that is only read
            if path.is_dir() and not path.is_symlink():
                path.rename(path.with_suffix(".folder"))
            else:
                path.unlink(missing_ok=True)
        self._forget(name)

    def drop(self, block_hash: bytes) -> None:
        """Remove a block in the thread that writes, so that the caller does not wait for the disk."""
        self._writer.submit(self._remove, self._name(block_hash))

    def _remove(self, name: str) -> None:
        self._forget(name)
        if self._writes:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._num_bytes -= self._sizes.pop(name, 0)

    def save(self, block_hash: bytes, content: memoryview, *, is_for_others: bool) -> None:
        if self.wants(block_hash, is_for_others=is_for_others) and self._waiting.add(block_hash, len(content)):
            self._writer.submit(self._write, block_hash, content)

    def _write(self, block_hash: bytes, content: memoryview) -> None:
        name = self._name(block_hash)
        path = self._folder / name
        part = path.with_suffix(f".{os.getpid()}.part")
        size = len(content) + SUM_BYTES
        try:
            self._make_room(size)
            part.unlink(missing_ok=True)
            with part.open("xb") as file:  # not what another program has put there
                file.write(content)
                file.write(checksum(block_hash, content))
            part.rename(path)
            with self._lock:
                self._num_bytes += size - self._sizes.get(name, 0)  # a reader may have found another engine's
                self._sizes[name] = size
        except OSError as error:
            self._unwritten.log(logging.WARNING, "a KV block could not be stored: %s", error)
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        finally:
            self._waiting.remove([block_hash])

    def _make_room(self, num_bytes: int) -> None:
        while self._num_bytes + num_bytes > self._max_bytes and self._sizes:
            with self._lock:
                name, size = self._sizes.popitem(last=False)
                self._num_bytes -= size
            with contextlib.suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Wait until what was saved is in its files, and close."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._writer.shutdown()
