"""HostStore: blocks of this engine in host memory, for prefixes that the KV cache has lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..api import StoredBlocks
from .host_blocks import HostBlocks


@dataclass(frozen=True, slots=True)
class ReadBlocks:
    """Implements Fetch of core/block_store.py: nothing has to be read."""

    contents: list[memoryview]
    is_done: bool = True


class HostStore:
    """Implements core/block_store.py."""

    def __init__(self, max_bytes: int) -> None:
        self._blocks = HostBlocks(max_bytes)
        self.num_failures = 0

    def has(self, block_hash: bytes) -> bool:
        return block_hash in self._blocks

    def get(self, block_hash: bytes) -> memoryview | None:
        return self._blocks.get(block_hash)

    def wants(self, block_hash: bytes, *, is_for_others: bool) -> bool:
        return not self._blocks.touch(block_hash)

    def save(self, block_hash: bytes, content: memoryview, *, is_for_others: bool) -> None:
        self._blocks.put(block_hash, content)

    def is_saving(self, block_hash: bytes) -> bool:
        return False

    def stored(self, hashes: Sequence[bytes]) -> StoredBlocks:
        return StoredBlocks(())  # other engines read nothing of it

    def fetch(self, hashes: Sequence[bytes], source: StoredBlocks | None) -> ReadBlocks:
        contents: list[memoryview] = []
        for block_hash in hashes:
            if (content := self.get(block_hash)) is None:
                break
            contents.append(content)
        return ReadBlocks(contents)

    def close(self) -> None: ...
