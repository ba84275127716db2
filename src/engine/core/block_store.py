"""BlockStore: what the scheduler and the runner expect of a place outside the KV cache that keeps blocks.

A stored block has the keys and values of `block_size` tokens in all groups of layers, by its hash (block_hashes.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Fetch(Protocol):
    """Blocks that are being read into host memory by another thread."""

    @property
    def is_done(self) -> bool: ...

    @property
    def contents(self) -> list[memoryview]:
        """Of the first blocks, up to the first that cannot be read. Once `is_done`."""
        ...


class BlockStore(Protocol):
    """Its methods may be called from any thread, and do not wait for a disk."""

    def has(self, block_hash: bytes) -> bool:
        """Whether the block is stored, or about to be."""
        ...

    def fetch(self, hashes: Sequence[bytes]) -> Fetch:
        """Begin to read these blocks."""
        ...

    def save(self, block_hash: bytes, content: memoryview) -> None:
        """Begin to store a block. May drop it."""
        ...


@dataclass(frozen=True, slots=True)
class FetchedPrefix:
    """Blocks of a request that are read."""

    start: int  # blocks before the first of these
    fetch: Fetch


@dataclass(frozen=True, slots=True)
class BlockLoad:
    """Copy a stored block to the KV cache."""

    block_ids: tuple[int, ...]  # of each group of layers
    content: memoryview


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy a block of the KV cache to the store."""

    block_hash: bytes
    block_ids: tuple[int, ...]  # of each group of layers
