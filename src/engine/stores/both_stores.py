"""BothStores: the blocks of other engines, and beside them those that this one keeps in files, in host memory or with a
connector."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from ..api import StoredBlocks
from ..core.block_store import BlockStore, Fetch
from .engine_blocks import EngineBlocks


class _OwnAfter:
    """What another engine gives, and after that what this one has."""

    def __init__(self, fetch: Fetch, own: BlockStore, hashes: list[bytes]) -> None:
        self._fetch, self._own, self._hashes = fetch, own, hashes
        self._rest: Fetch | None = None

    @property
    def is_done(self) -> bool:
        if not self._fetch.is_done:
            return False
        if self._rest is None:
            rest = self._hashes[len(self._fetch.contents) :]
            self._rest = self._own.fetch(list(takewhile(self._own.has, rest)), None)
        return self._rest.is_done

    @property
    def contents(self) -> list[memoryview]:
        return self._fetch.contents + (self._rest.contents if self._rest is not None else [])


class BothStores:
    """Implements core/block_store.py. A prefix is read from other engines if its request says so, else from its own."""

    def __init__(self, engines: EngineBlocks, own: BlockStore) -> None:
        self._engines, self._own = engines, own

    @property
    def num_failures(self) -> int:
        return self._engines.num_failures + self._own.num_failures

    def has(self, block_hash: bytes) -> bool:
        return self._own.has(block_hash)

    def wants(self, block_hash: bytes, *, is_for_others: bool) -> bool:
        return any(store.wants(block_hash, is_for_others=is_for_others) for store in (self._engines, self._own))

    def save(self, block_hash: bytes, content: memoryview, *, is_for_others: bool) -> None:
        for store in (self._engines, self._own):
            store.save(block_hash, content, is_for_others=is_for_others)

    def is_saving(self, block_hash: bytes) -> bool:
        return self._engines.is_saving(block_hash)  # others read nothing from the own store

    def stored(self, hashes: Sequence[bytes]) -> StoredBlocks:
        return self._engines.stored(hashes)

    def fetch(self, hashes: Sequence[bytes], source: StoredBlocks | None) -> Fetch:
        if source is None:
            return self._own.fetch(hashes, None)
        return _OwnAfter(self._engines.fetch(hashes, source), self._own, list(hashes))

    def close(self) -> None:
        self._engines.close()
        self._own.close()
