"""DelayedSaves: saves blocks whose contents a device is still copying to host memory, once they have arrived."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..api import StoredBlocks
from ..core.block_store import BlockCopy, BlockStore, Fetch

logger = logging.getLogger(__name__)


class DelayedSaves:
    """Implements BlockStore and LaterStore of core/block_store.py."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._arriving: Counter[bytes] = Counter()
        self._waiter = ThreadPoolExecutor(1, "save-blocks")  # one: in the order of the copies

    def save_later(self, blocks: Sequence[tuple[BlockCopy, memoryview]], wait: Callable[[], None]) -> None:
        with self._lock:
            self._arriving.update(copy.block_hash for copy, _ in blocks)
        self._waiter.submit(self._save_all, blocks, wait)

    def _save_all(self, blocks: Sequence[tuple[BlockCopy, memoryview]], wait: Callable[[], None]) -> None:
        try:
            wait()
            for copy, content in blocks:
                self._store.save(copy.block_hash, content, is_for_others=copy.is_for_others)
        except Exception:  # a store that does not work costs time, and ends no engine
            logger.exception("%d KV blocks could not be stored", len(blocks))
        finally:
            with self._lock:
                self._arriving.subtract(copy.block_hash for copy, _ in blocks)
                self._arriving = +self._arriving

    def _is_arriving(self, block_hash: bytes) -> bool:
        return block_hash in self._arriving

    @property
    def num_failures(self) -> int:
        return self._store.num_failures

    def has(self, block_hash: bytes) -> bool:
        return self._store.has(block_hash)

    def fetch(self, hashes: Sequence[bytes], source: StoredBlocks | None) -> Fetch:
        return self._store.fetch(hashes, source)

    def wants(self, block_hash: bytes, *, is_for_others: bool) -> bool:
        """Of an arriving block only for others, for whom it may not be on its way."""
        if not is_for_others and self._is_arriving(block_hash):
            return False
        return self._store.wants(block_hash, is_for_others=is_for_others)

    def save(self, block_hash: bytes, content: memoryview, *, is_for_others: bool) -> None:
        self._store.save(block_hash, content, is_for_others=is_for_others)

    def is_saving(self, block_hash: bytes) -> bool:
        return self._is_arriving(block_hash) or self._store.is_saving(block_hash)

    def stored(self, hashes: Sequence[bytes]) -> StoredBlocks:
        return self._store.stored(hashes)

    def flush(self) -> None:
        """Wait until the store has all blocks that are to be saved."""
        self._waiter.submit(lambda: None).result()

    def close(self) -> None:
        """After what is arriving is stored."""
        self._waiter.shutdown()
        self._store.close()
