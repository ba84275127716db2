"""BlockFiles: KV cache blocks in files, so that a prefix is not computed again after a restart.

A folder has a sub-folder for each model (`fingerprint`), and there one file per block, named by its hash: the content,
and its CRC-32, begun with the hash. A file is written under another name and renamed, so a name never leads to a part
of a block. A file with a wrong sum is removed, and its tokens are computed. Files that were not read for the longest
time are removed when all models' files together exceed the limit.

Several engines may use one folder, also of machines that share it. Each counts the files that it found at its start,
and those that it wrote or read. It looks for files that others wrote since only where a request says that they exist.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path

from ..api import StoredBlocks
from .checksum import SUM_BYTES, checksum
from .future_fetch import FutureFetch
from .waiting_blocks import WaitingBlocks

_SUFFIX = ".kv"
_OLD_PART_S = 3600.0
logger = logging.getLogger(__name__)


class BlockFiles:
    """Implements core/block_store.py."""

    def __init__(
        self, folder: Path, fingerprint: str, max_bytes: int, *, reads: bool = True, writes: bool = True
    ) -> None:
        """max_bytes: of the files of all models in `folder`. Raises OSError if the folder cannot be used."""
        self._folder, self._fingerprint, self._max_bytes = folder, fingerprint, max_bytes
        self._reads, self._writes = reads, writes
        (folder / fingerprint).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # by path in the folder, least recently used first
        self._num_bytes = 0
        self.num_failures = 0
        self._waiting = WaitingBlocks()
        self._find_files()
        self._reader = ThreadPoolExecutor(1, "read-blocks")
        self._writer = ThreadPoolExecutor(1, "write-blocks")

    def _find_files(self) -> None:
        found = []
        for path in self._folder.glob("*/*"):
            with contextlib.suppress(OSError):  # another engine may remove files
                stat = path.stat()
                if path.suffix == _SUFFIX:
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
        return self._reads and self._has(block_hash)

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
        return FutureFetch(self._reader.submit(self._read_all, list(hashes)))

    def _read_all(self, hashes: list[bytes]) -> list[memoryview]:
        contents = []
        for block_hash in hashes:
            content = self._read(block_hash)
            if content is None:
                break
            contents.append(content)
        return contents

    def _read(self, block_hash: bytes) -> memoryview | None:
        name = self._name(block_hash)
        path = self._folder / name
        try:
            with path.open("rb", buffering=0) as file:
                whole = bytearray(os.fstat(file.fileno()).st_size)
                num_read = file.readinto(whole)
        except (OSError, MemoryError) as error:
            if not isinstance(error, FileNotFoundError):  # it may wait to be written, or another engine removed it
                self.num_failures += 1
                logger.warning("a stored KV block cannot be read, its tokens are computed: %s", error)
            self._forget(name)
            return None
        view = memoryview(whole)
        content, its_sum = view[:-SUM_BYTES], view[-SUM_BYTES:]
        if num_read != len(whole) or bytes(its_sum) != checksum(block_hash, content):
            self.num_failures += 1
            logger.warning("a stored KV block is damaged and is removed, its tokens are computed: %s", path)
            with contextlib.suppress(OSError):  # of a folder that is only read
                path.unlink(missing_ok=True)
            self._forget(name)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        with self._lock:
            if name not in self._sizes:  # another engine has written it
                self._sizes[name] = num_read
                self._num_bytes += num_read
            self._sizes.move_to_end(name)
        return content

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
            with part.open("wb") as file:
                file.write(content)
                file.write(checksum(block_hash, content))
            part.rename(path)
            with self._lock:
                self._num_bytes += size - self._sizes.get(name, 0)  # a reader may have found another engine's
                self._sizes[name] = size
        except OSError as error:
            self.num_failures += 1
            logger.warning("a KV block could not be stored: %s", error)
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

    def flush(self) -> None:
        """Wait until all blocks that were saved are in their files."""
        self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """After what was saved is in its files."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._writer.shutdown()
