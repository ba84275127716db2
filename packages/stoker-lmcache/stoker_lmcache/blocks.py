"""LmcacheBlocks: KV cache blocks in an LMCache server, which other engines of this machine use too.

Whether the server has a block is known only once it was asked: a prompt with blocks that are not in the KV cache asks
once, while others are computed. A server that does not answer is asked again only by this store, so that at most the
request that noticed it waits for it, and prompts are computed meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from stoker.config.schema.kv_transfer import LMCACHE_HOST, LMCACHE_LIMIT, LMCACHE_PORT
from stoker.engine.api import StoredBlocks
from stoker.engine.kv_stores.connector import StoreRole
from stoker.engine.kv_stores.future_fetch import FutureFetch
from stoker.engine.kv_stores.known_blocks import KnownBlocks
from stoker.engine.kv_stores.waiting_blocks import WaitingBlocks

from .connection import MAX_BATCH, LmcacheConnection
from .requests import LmcacheUnavailable

RETRY_S = 10.0
logger = logging.getLogger(__name__)


class LmcacheBlocks:
    """Implements BlockStore of engine/core/block_store.py, and StoreClass of engine/kv_stores/connector.py."""

    def __init__(
        self,
        connect: Callable[[], LmcacheConnection],
        *,
        reads: bool = True,
        writes: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reads, self._writes, self._clock = reads, writes, clock
        self._for_reads, self._for_saves = connect(), connect()
        self.num_failures = 0
        self._lock = threading.Lock()
        self._known = KnownBlocks()
        self._queue: deque[tuple[bytes, memoryview]] = deque()
        self._waiting = WaitingBlocks()
        self._is_up = self._is_reported = False
        self._retry_at: float | None = None  # None: it is being asked
        self._reader = ThreadPoolExecutor(1, "read-blocks")
        self._writer = ThreadPoolExecutor(1, "write-blocks")
        self._reader.submit(self._look)

    @classmethod
    def open_store(cls, role: StoreRole, settings: Mapping[str, Any]) -> LmcacheBlocks:
        """Open the store. settings: `kv_connector_extra_config`."""
        host = str(settings.get(LMCACHE_HOST, "localhost")).removeprefix("tcp://")
        address, limit_s = f"tcp://{host}:{settings.get(LMCACHE_PORT, 5555)}", float(settings.get(LMCACHE_LIMIT, 3))
        connect = partial(LmcacheConnection, address, role.fingerprint, role.block_bytes, limit_s)
        return cls(connect, reads=role.reads, writes=role.writes)

    @property
    def is_up(self) -> bool:
        """Whether the server answers. If it did not, ask again after a while."""
        with self._lock:
            must_look = self._retry_at is not None and self._clock() >= self._retry_at
            if must_look:
                self._retry_at = None
        if must_look:
            self._reader.submit(self._look)
        return self._is_up

    def _look(self) -> None:
        try:
            self._for_reads.register()
        except LmcacheUnavailable as error:
            self._lost(error)
            return
        if self._is_reported:
            logger.info("LMCache can be used again")
        self._is_up, self._is_reported = True, False

    def _lost(self, error: LmcacheUnavailable) -> None:
        with self._lock:
            self.num_failures += 1
            if not self._is_reported:
                logger.warning("LMCache cannot be used, prompts are computed: %s", error)
            self._is_up, self._is_reported, self._retry_at = False, True, self._clock() + RETRY_S

    def has(self, block_hash: bytes) -> bool:
        """Whether the server may have a block: it may have any."""
        return self._reads and self.is_up

    def wants(self, block_hash: bytes, *, is_for_others: bool) -> bool:
        if not self._writes or not self.is_up:
            return False
        # in this order: a block is known before it waits no longer
        return block_hash not in self._waiting and not self._known.touch(block_hash)

    def drop(self, block_hash: bytes) -> None:
        """Forget a block, which is saved again, over the one that is stored."""
        self._known.forget([block_hash])

    def is_saving(self, block_hash: bytes) -> bool:
        return block_hash in self._waiting

    def stored(self, hashes: Sequence[bytes]) -> StoredBlocks:
        return self._known.stored(hashes)

    def fetch(self, hashes: Sequence[bytes], source: StoredBlocks | None) -> FutureFetch:
        return FutureFetch(self._reader.submit(self._read, list(hashes)))

    def _read(self, hashes: list[bytes]) -> list[memoryview]:
        if not self._is_up:  # lost while this request waited
            return []
        try:
            contents = self._for_reads.read(hashes)
        except LmcacheUnavailable as error:
            self._lost(error)
            return error.contents
        self._known.forget(hashes[len(contents) :])
        self._known.add(hashes[: len(contents)])
        return contents

    def save(self, block_hash: bytes, content: memoryview, *, is_for_others: bool) -> None:
        if self.wants(block_hash, is_for_others=is_for_others) and self._waiting.add(block_hash, len(content)):
            self._queue.append((block_hash, content))
            self._writer.submit(self._write)

    def _write(self) -> None:
        """Save a batch of what is queued: nothing is left for the calls of the other blocks in it."""
        batch = [self._queue.popleft() for _ in range(min(MAX_BATCH, len(self._queue)))]
        if not batch:
            return
        hashes = [block_hash for block_hash, _ in batch]
        try:
            if self._is_up:
                self._for_saves.save(batch)
                self._known.add(hashes)
        except LmcacheUnavailable as error:
            self._lost(error)
        finally:
            self._waiting.remove(hashes)

    def flush(self) -> None:
        """Wait until the server has all blocks that were saved, or is given up."""
        self._reader.submit(lambda: None).result()
        self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """Wait until what was saved is with the server, and close."""
        self._reader.shutdown(cancel_futures=True)
        self._writer.shutdown()
        self._for_reads.close()
        self._for_saves.close()
