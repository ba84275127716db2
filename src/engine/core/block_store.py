"""BlockStore: what the scheduler and the runner expect of a place outside the KV cache that keeps blocks.

A stored block has the keys and values of `block_size` tokens in all groups of layers, by its hash (block_hashes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..api import StoredBlocks
from ..step import BlockCopy


class Fetch(Protocol):
    """Blocks that are being read into host memory by another thread."""

    @property
    def is_done(self) -> bool: ...

    @property
    def contents(self) -> list[memoryview]:
        """Contents of the first blocks, up to the first that cannot be read. Read them when `is_done`."""
        ...


class BlockStore(Protocol):
    """A store of blocks. Its methods may be called from any thread, and do not wait for a disk."""

    @property
    def num_failures(self) -> int:
        """Reads and writes that have failed, since the start."""
        ...

    def has(self, block_hash: bytes) -> bool:
        """Whether the block can be read, as far as this engine knows."""
        ...

    def fetch(self, hashes: Sequence[bytes], source: StoredBlocks | None) -> Fetch:
        """Begin to read these blocks. source: what has them besides this store."""
        ...

    def wants(self, block_hash: bytes, *, is_for_others: bool) -> bool:
        """Whether to save this block. is_for_others: another engine is to read it."""
        ...

    def save(self, block_hash: bytes, content: memoryview, *, is_for_others: bool) -> None:
        """Begin to store a block. May drop it."""
        ...

    def drop(self, block_hash: bytes) -> None:
        """Begin to remove a block whose content is wrong, as far as this store can: it may be saved again."""
        ...

    def is_saving(self, block_hash: bytes) -> bool:
        """Whether the block is about to be stored."""
        ...

    def stored(self, hashes: Sequence[bytes]) -> StoredBlocks:
        """What others can read now: of the first of these blocks, up to the first that is not stored."""
        ...

    def close(self) -> None:
        """Stop reading and storing."""
        ...


@dataclass(frozen=True, slots=True)
class FetchedPrefix:
    """Blocks of a request that are read."""

    start: int  # blocks before the first of these
    fetch: Fetch


class LaterStore(Protocol):
    """A store for contents that a device is still copying."""

    def save_later(self, blocks: Sequence[tuple[BlockCopy, memoryview]], wait: Callable[[], None]) -> None:
        """Store these blocks once `wait`, which another thread calls, has returned. None of them is if it raises."""
        ...
