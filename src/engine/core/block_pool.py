"""Block pool: owns the ids of all KV cache blocks and lends them out.

Knows reference counts and the order of reuse. What a block holds is the prefix cache's affair (prefix_cache.py), its
bytes are the runner's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from .prefix_cache import PrefixCache


class BlockPool:
    """Blocks 0 to num_blocks - 1. A block is held (by one sequence or more), free and blank, or free and cached.

    Blank blocks are lent first; then cached ones, the longest unused first. A sequence gives its blocks back last one
    first, so the tail of a chain is reused before its head, and what stays cached is a usable prefix.
    """

    def __init__(self, num_blocks: int, cache: PrefixCache) -> None:
        self.num_blocks = num_blocks
        self._cache = cache
        self._ref_counts = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))  # a stack, block 0 on top
        self._cached: OrderedDict[int, None] = OrderedDict()  # free blocks with a name, the longest unused first

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._cached)

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def num_free_among(self, block_ids: Iterable[int]) -> int:
        """How many of these nobody holds, so that `hold` would take them from the free ones."""
        counts = self._ref_counts
        return sum(not counts[block_id] for block_id in block_ids)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with undefined content, each held once. The caller has checked `num_free`."""
        assert count <= self.num_free, f"{count} blocks wanted, {self.num_free} free"
        block_ids = []
        for _ in range(count):
            if self._blank:
                block_id = self._blank.pop()
            else:
                block_id, _ = self._cached.popitem(last=False)
                self._cache.forget(block_id)
            self._ref_counts[block_id] = 1
            block_ids.append(block_id)
        return block_ids

    def hold(self, block_ids: Iterable[int]) -> None:
        """One more holder for blocks that the prefix cache found."""
        for block_id in block_ids:
            if not self._ref_counts[block_id]:
                del self._cached[block_id]
            self._ref_counts[block_id] += 1

    def release(self, block_ids: list[int]) -> None:
        """One holder less for each block of a sequence, given in the sequence's order."""
        for block_id in reversed(block_ids):
            count = self._ref_counts[block_id] - 1
            assert count >= 0, f"block {block_id} was given back twice"
            self._ref_counts[block_id] = count
            if count:
                continue
            if block_id in self._cache:
                self._cached[block_id] = None
            else:
                self._blank.append(block_id)

    def forget_all(self) -> None:
        """No block is cached any more; those that are held stay with their holders."""
        self._cache.forget_all()
        self._blank += self._cached
        self._cached.clear()
