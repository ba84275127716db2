"""BothStores: the blocks of other engines, and files beside them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from ..api import StoredBlocks
from ..core.block_store import Fetch
from .block_files import BlockFiles
from .engine_blocks import EngineBlocks


class _FilesAfter:
    """What another engine gives, and after that what the files have."""

    def __init__(self, fetch: Fetch, files: BlockFiles, hashes: list[bytes]) -> None:
        self._fetch, self._files, self._hashes = fetch, files, hashes
        self._rest: Fetch | None = None

    @property
    def is_done(self) -> bool:
        if not self._fetch.is_done:
            return False
        if self._rest is None:
            rest = self._hashes[len(self._fetch.contents) :]
            self._rest = self._files.fetch(list(takewhile(self._files.has, rest)), None)
        return self._rest.is_done

    @property
    def contents(self) -> list[memoryview]:
        return self._fetch.contents + (self._rest.contents if self._rest is not None else [])


class BothStores:
    """Implements core/block_store.py. A prefix is read from other engines if its request says so, else from files."""

    def __init__(self, engines: EngineBlocks, files: BlockFiles) -> None:
        self._engines, self._files = engines, files

    def has(self, block_hash: bytes) -> bool:
        return self._files.has(block_hash)

    def wants(self, block_hash: bytes, *, is_for_others: bool) -> bool:
        return any(store.wants(block_hash, is_for_others=is_for_others) for store in (self._engines, self._files))

    def save(self, block_hash: bytes, content: memoryview, *, is_for_others: bool) -> None:
        for store in (self._engines, self._files):
            store.save(block_hash, content, is_for_others=is_for_others)

    def is_saving(self, block_hash: bytes) -> bool:
        return self._engines.is_saving(block_hash)  # others read nothing from the files

    def stored(self, hashes: Sequence[bytes]) -> StoredBlocks:
        return self._engines.stored(hashes)

    def fetch(self, hashes: Sequence[bytes], source: StoredBlocks | None) -> Fetch:
        if source is None:
            return self._files.fetch(hashes, None)
        return _FilesAfter(self._engines.fetch(hashes, source), self._files, list(hashes))

    def close(self) -> None:
        self._engines.close()
        self._files.close()
