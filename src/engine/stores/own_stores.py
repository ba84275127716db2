"""OwnStores: blocks of this engine in host memory, and a lasting store beside it for those that it has lost."""

from __future__ import annotations

from collections.abc import Sequence

from ..api import StoredBlocks
from ..core.block_store import BlockStore, Fetch
from .host_store import HostStore


class _FromBoth:
    """Contents in the order of their hashes, up to the first that cannot be read."""

    def __init__(self, in_memory: Sequence[memoryview | None], lasting: Fetch) -> None:
        """in_memory: None for those that are not."""
        self._in_memory, self._lasting = in_memory, lasting

    @property
    def is_done(self) -> bool:
        return self._lasting.is_done

    @property
    def contents(self) -> list[memoryview]:
        found, read = [], iter(self._lasting.contents)
        for content in self._in_memory:
            if content is None and (content := next(read, None)) is None:
                break
            found.append(content)
        return found


class OwnStores:
    """Implements core/block_store.py. What the lasting store has gets into memory when it is in the KV cache."""

    def __init__(self, memory: HostStore, lasting: BlockStore) -> None:
        """lasting: files, or what a connector stores."""
        self._memory, self._lasting = memory, lasting

    @property
    def num_failures(self) -> int:
        return self._lasting.num_failures

    def has(self, block_hash: bytes) -> bool:
        return self._memory.has(block_hash) or self._lasting.has(block_hash)

    def wants(self, block_hash: bytes, *, is_for_others: bool) -> bool:
        wanted = [store.wants(block_hash, is_for_others=is_for_others) for store in (self._memory, self._lasting)]
        return any(wanted)  # both are asked: each counts the block as used

    def save(self, block_hash: bytes, content: memoryview, *, is_for_others: bool) -> None:
        for store in (self._memory, self._lasting):
            store.save(block_hash, content, is_for_others=is_for_others)

    def is_saving(self, block_hash: bytes) -> bool:
        return self._lasting.is_saving(block_hash)

    def stored(self, hashes: Sequence[bytes]) -> StoredBlocks:
        return self._lasting.stored(hashes)

    def fetch(self, hashes: Sequence[bytes], source: StoredBlocks | None) -> Fetch:
        in_memory = [self._memory.get(block_hash) for block_hash in hashes]
        missing = [block_hash for block_hash, content in zip(hashes, in_memory, strict=True) if content is None]
        return _FromBoth(in_memory, self._lasting.fetch(missing, source))

    def close(self) -> None:
        self._lasting.close()
