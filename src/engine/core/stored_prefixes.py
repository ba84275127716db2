"""StoredPrefixes: prefixes of waiting requests that come from a store instead of being computed; and what is stored.

A request whose next blocks are stored waits while they are read into host memory; others pass it. Then the blocks get
places in the KV cache, are published to the prefix cache, and the request finds them there like blocks that another
request has computed. The copy to their places is part of the next plan. A block that cannot be read ends the prefix
there; the tokens after it are computed.

Blocks that came from a store are dropped, with those after them, when a step that used them fails: their contents may
be the reason. They are not read again; the prompt is computed.

Does not know where blocks are stored (block_store.py), nor what a block contains.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..step.plan import BlockCopy, BlockLoad
from .block_store import BlockStore, FetchedPrefix
from .prefix_cache import NO_BLOCK
from .request import NO_SLOT, Request
from .sequence_blocks import SequenceBlocks

logger = logging.getLogger(__name__)
MAX_REMEMBERED = 1 << 16  # blocks that were read, and blocks that are not read again
MAX_READING = 2  # requests whose blocks are in host memory: each may have as many as the KV cache holds


class StoredPrefixes:
    def __init__(self, store: BlockStore, blocks: SequenceBlocks) -> None:
        self._store = store
        self._blocks = blocks
        self.num_queried_tokens = self.num_read_tokens = 0  # in all lookups; preempted sequences not counted
        self._read: dict[bytes, None] = {}  # hashes of blocks that came from a store, the oldest first
        self._refused: dict[bytes, None] = {}  # of those that are not read again
        self._reading: list[Request] = []
        self._loads: list[BlockLoad] = []

    @property
    def num_failures(self) -> int:
        return self._store.num_failures

    def is_reading(self, request: Request) -> bool:
        """Whether a waiting request must wait for its stored blocks.

        The first call begins to read them, and one after which the KV cache has lost more of its prefix.
        """
        if request.fetched is not None:
            return not request.fetched.fetch.is_done
        if not request.reads_cache:
            return False
        start = self._blocks.find_cached(request).num_blocks
        if request.asked_after is not None and start >= request.asked_after:
            return False
        hashes = self._stored_after(request, start)
        if hashes and len(self._still_reading()) >= MAX_READING:
            return True
        if not request.num_preemptions:
            self.num_queried_tokens += len(request.token_ids) - start * self._blocks.block_size
            if request.asked_after is None:
                _check_names(request)
        request.asked_after = start
        if not hashes:
            return False
        request.fetched = FetchedPrefix(start, self._store.fetch(hashes, request.source))
        self._reading.append(request)
        return not request.fetched.fetch.is_done

    def _stored_after(self, request: Request, start: int) -> list[bytes]:
        found = []
        source = () if request.source is None else request.source.hashes
        stop = (len(request.token_ids) - 1) // self._blocks.block_size  # the last known token is always computed
        for index, block_hash in enumerate(request.block_hashes[start:stop], start):
            if block_hash in self._refused:
                break
            if block_hash not in source[index : index + 1] and not self._store.has(block_hash):
                break
            found.append(block_hash)
        return found

    def _still_reading(self) -> list[Request]:
        self._reading = [
            request
            for request in self._reading
            if request.fetched is not None and request.finish_reason is None and request.slot == NO_SLOT
        ]
        return self._reading

    def place(self, request: Request, margin: int) -> bool:
        """Put the blocks that were read into the KV cache, if the whole request fits beside `margin` blocks.

        Cached blocks that others hold need no room. Otherwise they stay in host memory until it does. Returns whether
        the request must wait for stored blocks again: the KV cache has lost blocks before those that were read.
        """
        fetched = request.fetched
        if fetched is None:
            return False
        blocks, cached = self._blocks, self._blocks.find_cached(request)
        first = cached.num_blocks
        num_new = -(-len(request.token_ids) // blocks.block_size) - first
        if num_new * blocks.num_groups + margin > blocks.num_available - blocks.num_free_among(cached):
            return False
        request.fetched = None
        if first < fetched.start:
            return self.is_reading(request) or self.place(request, margin)
        contents = fetched.fetch.contents[first - fetched.start :]
        if not contents:
            return False  # others have computed these blocks
        places = blocks.place(request, cached, len(contents))
        self._loads += map(BlockLoad, places, contents)
        _remember(self._read, request.block_hashes[first : first + len(contents)])
        if not request.num_preemptions:
            self.num_read_tokens += len(contents) * blocks.block_size
        return False

    def distrust(self, request: Request) -> None:
        """A step of this request has failed. Nothing happens if it used no stored blocks."""
        hashes = request.block_hashes
        first = next((index for index, block_hash in enumerate(hashes) if block_hash in self._read), None)
        if first is None:
            return
        logger.warning(
            "request %s has failed with stored KV blocks: they and those after them are dropped, and computed again",
            request.request_id,
        )
        _remember(self._refused, [block_hash for block_hash in hashes[first:] if block_hash in self._read])
        self._blocks.forget(hashes[first:])
        for block_hash in hashes[first:]:
            self._read.pop(block_hash, None)
            self._store.drop(block_hash)

    def take_loads(self) -> list[BlockLoad]:
        """The loads that the next plan must execute."""
        loads, self._loads = self._loads, []
        return loads

    def offer(self, request: Request, saves: dict[bytes, BlockCopy]) -> None:
        """Add the full blocks of a running request that are to be stored to `saves`."""
        is_for_others = request.is_for_others
        for index in range(request.num_offered, request.num_published):
            block_hash = request.block_hashes[index]
            block_ids = tuple(table[index] for table in request.block_ids)
            if NO_BLOCK in block_ids or (block_hash in saves and not is_for_others):
                continue
            if self._store.wants(block_hash, is_for_others=is_for_others):
                saves[block_hash] = BlockCopy(block_hash, block_ids, is_for_others)
        request.num_offered = max(request.num_offered, request.num_published)


def _remember(hashes: dict[bytes, None], more: Iterable[bytes]) -> None:
    for block_hash in more:
        hashes.pop(block_hash, None)
        hashes[block_hash] = None
    while len(hashes) > MAX_REMEMBERED:
        del hashes[next(iter(hashes))]


def _check_names(request: Request) -> None:
    """Log a warning if blocks are named in vain, which would cost every request the time of a prefill elsewhere."""
    named = () if request.source is None else request.source.hashes
    if named and request.block_hashes and named[0] != request.block_hashes[0]:
        logger.warning(
            "the KV blocks named in request %s are not those of its prompt, which is computed here: the other server "
            "separates requests by API key, or its prefix cache was reset",
            request.request_id,
        )
