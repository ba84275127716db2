"""BlockEvents: records what the prefix cache holds, in the order of its changes, for programs outside the engine.

A block is cached when its tokens are scheduled, before they are computed. Changes made by a plan are therefore handed
out when its step is finished, and all later ones after them: the order is kept. Blocks that no request can use any
more (of an earlier epoch) are not reported, though they stay in the cache until they are reused.

Does not know how events are encoded and sent: see ../kv_events/payloads.py and ../kv_events/publisher.py.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..api import AdapterRef
from .block_hashes import BlockHasher
from .request import Request

# What the hash of a block covers besides its ids and the block before: a digest of salt and adapter, with the first
# block of a sequence that has one, and CacheScope.extra_keys. None: nothing.
ExtraKeys = list[str | tuple[str, int]] | None


@dataclass(slots=True)
class BlocksStored:
    """Consecutive blocks of one sequence are cached in one group of layers."""

    group: int
    parent_hash: bytes | None  # of the block before the first one; None: it is the first of its sequence
    block_hashes: list[bytes]
    token_ids: list[int]  # of all blocks
    extra_keys: list[ExtraKeys]  # of each block
    adapter: AdapterRef | None = None  # that all of them are computed with


@dataclass(slots=True)
class BlocksRemoved:
    group: int
    block_hashes: list[bytes]


@dataclass(slots=True)
class BlocksCleared:
    """The cache is empty, in all groups."""


BlockEvent = BlocksStored | BlocksRemoved | BlocksCleared


class BlockEvents:
    def __init__(self, num_groups: int, block_size: int, hasher: BlockHasher) -> None:
        self._block_size = block_size
        self._hasher = hasher
        self._reported: list[set[bytes]] = [set() for _ in range(num_groups)]  # stored, and not removed since
        self._epoch = 0
        self._ready: list[BlockEvent] = []
        self._planned: deque[tuple[int, list[BlockEvent]]] = deque()  # by the step whose end they wait for
        self._current: list[BlockEvent] = []
        self._last: list[BlockEvent | None] = [None] * num_groups  # of `_current`, by group: more blocks may join it

    @property
    def reported(self) -> list[set[bytes]]:
        """Hashes of the blocks that are cached and usable, by group, whether or not their events are taken."""
        return self._reported

    def stored(self, request: Request, index: int, group: int) -> None:
        """The request's block at `index` is now cached."""
        scope = request.inputs.scope
        if scope.epoch < self._epoch:
            return
        size, block_hash = self._block_size, request.block_hashes[index]
        parent = request.block_hashes[index - 1] if index else None
        token_ids = request.token_ids[index * size : (index + 1) * size]
        has_root = parent is None and (scope.salt or scope.adapter)
        salt = [self._hasher.root(scope).hex()] if has_root else []
        extra_keys: ExtraKeys = [*salt, *scope.extra_keys(index * size, (index + 1) * size)] or None
        self._reported[group].add(block_hash)
        last = self._last[group]
        if isinstance(last, BlocksStored) and last.block_hashes[-1] == parent:
            last.block_hashes.append(block_hash)
            last.token_ids += token_ids
            last.extra_keys.append(extra_keys)
            return
        adapter = request.inputs.adapter
        self._append(BlocksStored(group, parent, [block_hash], token_ids, [extra_keys], adapter), group)

    def removed(self, block_hash: bytes, group: int) -> None:
        """The block with this hash is about to be overwritten."""
        if block_hash not in self._reported[group]:
            return
        self._reported[group].remove(block_hash)
        last = self._last[group]
        if isinstance(last, BlocksRemoved):
            last.block_hashes.append(block_hash)
        else:
            self._append(BlocksRemoved(group, [block_hash]), group)

    def cleared(self) -> None:
        """Record that no block is cached any more. Events that were not handed out yet have no meaning now."""
        for hashes in self._reported:
            hashes.clear()
        self._ready, self._current = [BlocksCleared()], []
        self._planned.clear()
        self._close()

    def reached_epoch(self, epoch: int) -> None:
        """Record that a request of this epoch has arrived: blocks of earlier ones are of no use."""
        if epoch > self._epoch:
            self._epoch = epoch
            self.cleared()

    def planned(self, step: int) -> None:
        """The changes since the last plan belong to this step."""
        if self._current:
            self._planned.append((step, self._current))
            self._current = []
            self._close()

    def finished(self, step: int) -> None:
        """The oldest step in flight is finished, and what its tokens changed is recorded."""
        while self._planned and self._planned[0][0] <= step:
            self._ready += self._planned.popleft()[1]
        if not self._planned and self._current:  # these wait for no step
            self._ready += self._current
            self._current = []
            self._close()

    def take(self) -> list[BlockEvent]:
        """The events that can be sent now, each handed out once."""
        ready, self._ready = self._ready, []
        return ready

    def _append(self, event: BlockEvent, group: int) -> None:
        self._current.append(event)
        self._last[group] = event

    def _close(self) -> None:
        self._last = [None] * len(self._last)
