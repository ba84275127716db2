"""Prefix cache: finds the block that already holds the keys and values of a given prefix.

Knows block hashes (block_hashes.py) and block ids. Does not know who holds a block, nor when it is reused: see
block_pool.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice


class PrefixCache:
    """A two-way map between hashes of full blocks and block ids. The first block published with a hash keeps it."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._hashes

    def find(self, hashes: Sequence[bytes], start: int, stop: int) -> list[int]:
        """Ids of the blocks with hashes[start:stop], up to the first that is missing."""
        found = []
        for block_hash in islice(hashes, start, stop):
            block_id = self._blocks.get(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def publish(self, block_hash: bytes, block_id: int) -> None:
        """Let others find `block_id`. If another block has this hash already, nothing changes: block tables only grow,
        so a second copy that is already in one cannot be merged; it is not cached."""
        if block_hash not in self._blocks:
            assert block_id not in self._hashes, f"block {block_id} already has a hash"
            self._blocks[block_hash] = block_id
            self._hashes[block_id] = block_hash

    def forget(self, block_id: int) -> None:
        """The block is about to be overwritten."""
        del self._blocks[self._hashes.pop(block_id)]

    def forget_all(self) -> None:
        self._blocks.clear()
        self._hashes.clear()
