"""KnownBlocks: what a storage has got or given, where the storage itself is not asked before a block is saved."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile

from ..api import StoredBlocks

MAX_KNOWN = 1 << 17  # hashes, with 100 bytes each; a block that is forgotten is saved again


class KnownBlocks:
    """Hashes of the blocks that were used last. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hashes: OrderedDict[bytes, None] = OrderedDict()  # least recently used first

    def touch(self, block_hash: bytes) -> bool:
        """Whether it is known, and then used now."""
        with self._lock:
            is_known = block_hash in self._hashes
            if is_known:
                self._hashes.move_to_end(block_hash)
            return is_known

    def add(self, hashes: Iterable[bytes]) -> None:
        with self._lock:
            for block_hash in hashes:
                self._hashes[block_hash] = None
                self._hashes.move_to_end(block_hash)
            while len(self._hashes) > MAX_KNOWN:
                self._hashes.popitem(last=False)

    def forget(self, hashes: Iterable[bytes]) -> None:
        """The storage has lost them: they are to be saved again."""
        with self._lock:
            for block_hash in hashes:
                self._hashes.pop(block_hash, None)

    def stored(self, hashes: Sequence[bytes]) -> StoredBlocks:
        """See BlockStore.stored."""
        with self._lock:
            return StoredBlocks(tuple(takewhile(self._hashes.__contains__, hashes)))
