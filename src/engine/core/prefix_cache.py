"""Prefix cache: finds the block that already holds the keys and values of a given prefix.

A prefix has one hash, a block in each group of layers, and may have a kept state (kept_states.py), which is forgotten
together with its blocks. Knows block hashes (block_hashes.py) and block ids. Does not know who holds a block, nor when
it is reused: see block_pool.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from .block_events import BlockEvents
from .kept_states import KeptStates

NO_BLOCK = -1  # in place of a block that a group does not have, because it is before its window


class PrefixCache:
    """A two-way map between hashes of full blocks and block ids, for each group of layers. The first block published
    with a hash keeps it."""

    def __init__(
        self, num_groups: int = 1, states: KeptStates | None = None, events: BlockEvents | None = None
    ) -> None:
        """events: records here what is forgotten; the caller of `publish` records what is stored."""
        self._events = events
        self.states = KeptStates() if states is None else states
        self._blocks: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        self._hashes: dict[int, tuple[int, bytes]] = {}  # block id -> group and hash

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._hashes

    def has(self, block_hash: bytes) -> bool:
        """Whether some group of layers has a block with this hash."""
        return any(block_hash in blocks for blocks in self._blocks)

    def find(self, hashes: Sequence[bytes], start: int, stop: int, group: int = 0) -> list[int]:
        """Ids of the blocks with hashes[start:stop], up to the first that is missing."""
        found, blocks = [], self._blocks[group]
        for block_hash in islice(hashes, start, stop):
            block_id = blocks.get(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def find_each(self, hashes: Sequence[bytes], start: int, stop: int, group: int) -> list[int]:
        """Ids of the blocks with hashes[start:stop]; NO_BLOCK for each that is missing."""
        blocks = self._blocks[group]
        return [blocks.get(block_hash, NO_BLOCK) for block_hash in islice(hashes, start, stop)]

    def ids_of(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of all groups that have one of these hashes."""
        return [blocks[each] for each in hashes for blocks in self._blocks if each in blocks]

    def publish(self, block_hash: bytes, block_id: int, group: int = 0) -> bool:
        """Let others find `block_id`. If another block has this hash already, nothing changes: block tables only grow,
        so a second copy that is already in one cannot be merged; it is not cached. Returns whether it is now."""
        blocks = self._blocks[group]
        if block_hash in blocks:
            return False
        assert block_id not in self._hashes, f"block {block_id} already has a hash"
        blocks[block_hash] = block_id
        self._hashes[block_id] = group, block_hash
        return True

    def forget(self, block_id: int) -> None:
        """The block is about to be overwritten."""
        group, block_hash = self._hashes.pop(block_id)
        del self._blocks[group][block_hash]
        self.states.forget(block_hash)
        if self._events is not None:
            self._events.removed(block_hash, group)

    def forget_all(self) -> None:
        for blocks in self._blocks:
            blocks.clear()
        self._hashes.clear()
        self.states.forget_all()
        if self._events is not None:
            self._events.cleared()
