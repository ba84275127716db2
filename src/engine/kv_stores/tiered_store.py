"""TieredStore: all places outside the KV cache where an engine keeps blocks, as one store.

Blocks are saved in each place. They are read from host memory first, then from the lasting place (files, or what a
connector stores). A request that says which other engine has its blocks reads them from there before that. On a device,
blocks are saved once their contents have arrived in host memory.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile

from ..api import StoredBlocks
from ..core.block_store import BlockStore, Fetch
from ..step.plan import BlockCopy
from .engine_blocks import EngineBlocks
from .host_blocks import HostBlocks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _OwnFetch:
    """Blocks of this engine, in the order of their hashes, up to the first that cannot be read."""

    in_memory: Sequence[memoryview | None]  # None: the block is among the lasting ones
    lasting: Fetch | None

    @property
    def is_done(self) -> bool:
        return self.lasting is None or self.lasting.is_done

    @property
    def contents(self) -> list[memoryview]:
        found, read = [], iter([] if self.lasting is None else self.lasting.contents)
        for content in self.in_memory:
            if content is None and (content := next(read, None)) is None:
                break
            found.append(content)
        return found


class _EngineFetch:
    """What another engine gives, and after that what this one has."""

    def __init__(self, theirs: Fetch, own_after: Callable[[int], Fetch]) -> None:
        """own_after: begins to read the blocks after the first ones, whose number it gets."""
        self._theirs, self._own_after = theirs, own_after
        self._own: Fetch | None = None

    @property
    def is_done(self) -> bool:
        if self._own is None and self._theirs.is_done:
            self._own = self._own_after(len(self._theirs.contents))
        return self._own is not None and self._own.is_done

    @property
    def contents(self) -> list[memoryview]:
        return self._theirs.contents + (self._own.contents if self._own is not None else [])


class TieredStore:
    """Implements BlockStore and LaterStore of core/block_store.py."""

    def __init__(
        self, memory_bytes: int = 0, lasting: BlockStore | None = None, engines: EngineBlocks | None = None
    ) -> None:
        """memory_bytes: of blocks in host memory. lasting: keeps blocks that outlive this engine. engines: the blocks
        of other engines, and those of this one that others read."""
        self.memory, self.lasting, self._engines = HostBlocks(memory_bytes), lasting, engines
        self._has_memory = memory_bytes > 0
        self._tiers: list[BlockStore] = [each for each in (engines, lasting) if each is not None]
        self._lock = threading.Lock()
        self._arriving: Counter[bytes] = Counter()  # blocks that are being copied from a device
        self._waiter = ThreadPoolExecutor(1, "save-blocks")  # one: in the order of the copies

    @property
    def num_failures(self) -> int:
        return sum(tier.num_failures for tier in self._tiers)

    def _is_own(self, block_hash: bytes) -> bool:
        return block_hash in self.memory or (self.lasting is not None and self.lasting.has(block_hash))

    @property
    def _has_own(self) -> bool:
        return self._has_memory or self.lasting is not None

    def has(self, block_hash: bytes) -> bool:
        if self._has_own or self._engines is None:
            return self._is_own(block_hash)
        return self._engines.has(block_hash)

    def fetch(self, hashes: Sequence[bytes], source: StoredBlocks | None) -> Fetch:
        if self._engines is None or (source is None and self._has_own):
            return self._fetch_own(hashes, source)

        def own_after(num_read: int) -> Fetch:
            return self._fetch_own(list(takewhile(self._is_own, hashes[num_read:])), None)

        return _EngineFetch(self._engines.fetch(hashes, source), own_after)

    def _fetch_own(self, hashes: Sequence[bytes], source: StoredBlocks | None) -> Fetch:
        in_memory = [self.memory.get(block_hash) for block_hash in hashes]
        missing = [block_hash for block_hash, content in zip(hashes, in_memory, strict=True) if content is None]
        return _OwnFetch(in_memory, self.lasting.fetch(missing, source) if self.lasting is not None else None)

    def wants(self, block_hash: bytes, *, is_for_others: bool) -> bool:
        """Whether to save a block. An arriving one is saved again only for others: the copy may not be for them."""
        if not is_for_others and block_hash in self._arriving:
            return False
        wanted = [tier.wants(block_hash, is_for_others=is_for_others) for tier in self._tiers]
        wanted.append(self._has_memory and not self.memory.touch(block_hash))
        return any(wanted)  # all are asked: each counts the block as used

    def save(self, block_hash: bytes, content: memoryview, *, is_for_others: bool) -> None:
        self.memory.put(block_hash, content)
        for tier in self._tiers:
            tier.save(block_hash, content, is_for_others=is_for_others)

    def save_later(self, blocks: Sequence[tuple[BlockCopy, memoryview]], wait: Callable[[], None]) -> None:
        with self._lock:
            self._arriving.update(copy.block_hash for copy, _ in blocks)
        self._waiter.submit(self._save_all, blocks, wait)

    def _save_all(self, blocks: Sequence[tuple[BlockCopy, memoryview]], wait: Callable[[], None]) -> None:
        try:
            wait()
            for copy, content in blocks:
                self.save(copy.block_hash, content, is_for_others=copy.is_for_others)
        except Exception:  # a store that does not work costs time, and ends no engine
            logger.exception("%d KV blocks could not be stored", len(blocks))
        finally:
            with self._lock:
                self._arriving.subtract(copy.block_hash for copy, _ in blocks)
                self._arriving = +self._arriving

    def drop(self, block_hash: bytes) -> None:
        """Drop a block, after what is arriving is stored."""
        if self._arriving:
            self._waiter.submit(self._drop, block_hash)
        else:
            self._drop(block_hash)

    def _drop(self, block_hash: bytes) -> None:
        self.memory.drop(block_hash)
        for tier in self._tiers:
            tier.drop(block_hash)

    def is_saving(self, block_hash: bytes) -> bool:
        return block_hash in self._arriving or any(tier.is_saving(block_hash) for tier in self._tiers[:1])

    def stored(self, hashes: Sequence[bytes]) -> StoredBlocks:
        """What other engines can read: the blocks for them, or else the lasting ones."""
        return self._tiers[0].stored(hashes) if self._tiers else StoredBlocks(())

    def close(self) -> None:
        """Wait until what is arriving is stored, and close."""
        self._waiter.shutdown()
        for tier in self._tiers:
            tier.close()
