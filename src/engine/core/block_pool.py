"""Block pool: owns the ids of all KV cache blocks and lends them out.

Knows reference counts and the order of reuse. Does not know what a block holds (prefix_cache.py), nor its memory (the
runner).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from .block_residency import BlockResidency
from .prefix_cache import PrefixCache


class BlockPool:
    """Blocks 0 to num_blocks - 1. A block is held (by one sequence or more), free and blank, or free and cached.

    Blank blocks are allocated first; then cached ones, the least recently used first. A sequence releases its blocks in
    reverse order, so the tail of a chain is reused before its head, and what stays cached is a usable prefix.
    """

    def __init__(self, num_blocks: int, cache: PrefixCache, residency: BlockResidency | None = None) -> None:
        """residency: measures how long they are kept."""
        self.num_blocks = num_blocks
        self._residency = residency
        self._cache = cache
        self._ref_counts = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))  # a stack, block 0 on top
        self._cached: OrderedDict[int, None] = OrderedDict()  # free blocks with a hash, the least recently used first

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._cached)

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def num_free_among(self, block_ids: Iterable[int]) -> int:
        """Number of these that are free, so that `hold` would take them from the free blocks."""
        counts = self._ref_counts
        return sum(not counts[block_id] for block_id in block_ids)

    def allocate(self, count: int) -> list[int]:
        """Returns `count` blocks with undefined content, each held once. The caller has checked `num_free`."""
        assert count <= self.num_free, f"{count} blocks wanted, {self.num_free} free"
        block_ids = []
        for _ in range(count):
            if self._blank:
                block_id = self._blank.pop()
            else:
                block_id, _ = self._cached.popitem(last=False)
                self._cache.forget(block_id)
                if self._residency is not None:
                    self._residency.evicted((block_id,))
            self._ref_counts[block_id] = 1
            if self._residency is not None:
                self._residency.allocated(block_id)
            block_ids.append(block_id)
        return block_ids

    def hold(self, block_ids: Iterable[int]) -> None:
        """Add a holder to blocks that the prefix cache found."""
        for block_id in block_ids:
            if not self._ref_counts[block_id]:
                del self._cached[block_id]
                if self._residency is not None:
                    self._residency.reused(block_id)
            self._ref_counts[block_id] += 1

    def release(self, block_ids: list[int]) -> None:
        """Remove a holder from each block of a sequence, given in the order of the sequence."""
        for block_id in reversed(block_ids):
            count = self._ref_counts[block_id] - 1
            assert count >= 0, f"block {block_id} was released twice"
            self._ref_counts[block_id] = count
            if count:
                continue
            if block_id in self._cache:
                self._cached[block_id] = None
                if self._residency is not None:
                    self._residency.freed(block_id)
            else:
                self._blank.append(block_id)

    def forget(self, block_ids: Iterable[int]) -> None:
        """Remove these blocks from the prefix cache. Blocks that are held stay held."""
        for block_id in block_ids:
            self._cache.forget(block_id)
            if block_id in self._cached:
                del self._cached[block_id]
                self._blank.append(block_id)
                if self._residency is not None:
                    self._residency.evicted([block_id])

    def forget_all(self) -> None:
        """Remove all blocks from the prefix cache. Blocks that are held stay held."""
        self._cache.forget_all()
        if self._residency is not None:
            self._residency.evicted(self._cached)
        self._blank += self._cached
        self._cached.clear()
