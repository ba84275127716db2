"""SequenceBlocks: the block tables of running sequences, how they grow, and what the prefix cache learns of them.

A sequence reserves blocks for all its known tokens when it is admitted, and takes them as its tokens are scheduled; so
a prefill never waits for memory half way. Decode rows take a block more when their last one is full.

Full blocks are published to the prefix cache when their tokens are scheduled, so requests that arrive together share a
prefix in the same step. That is safe because the runner writes the keys and values of all tokens of a step, layer by
layer, before any row attends to them, and executes steps in the order of their plans.

Does not decide who gets blocks (step_planner.py), nor when they are released (steps_in_flight.py).
"""

from __future__ import annotations

from .block_hashes import BlockHasher
from .block_pool import BlockPool
from .prefix_cache import PrefixCache
from .request import NO_SLOT, Request
from .settings import SchedulerSettings
from .slot_columns import SlotColumns
from .steps_in_flight import StepInFlight


class SequenceBlocks:
    def __init__(self, settings: SchedulerSettings, columns: SlotColumns) -> None:
        self._block_size = settings.block_size
        self._is_caching = settings.enable_prefix_caching
        self._columns = columns
        self.hasher = BlockHasher(settings.prefix_caching_hash_algo)
        self.cache = PrefixCache()
        self.pool = BlockPool(settings.num_blocks, self.cache)
        self.num_reserved = 0  # free blocks that admitted sequences will take
        self.num_queried_tokens = 0  # looked up in the prefix cache, and found there; preempted sequences not counted
        self.num_hit_tokens = 0

    @property
    def num_available(self) -> int:
        """Free blocks that are not reserved."""
        return self.pool.num_free - self.num_reserved

    # ---- the prefix cache

    def find_cached(self, request: Request) -> list[int]:
        """Cached blocks that continue the request's block table.

        Its last known token is always computed: the next one is sampled from its logits.
        """
        if not request.reads_cache:
            return []
        num_blocks = (len(request.token_ids) - 1) // self._block_size
        request.hash_blocks(self.hasher, self._block_size, num_blocks)
        return self.cache.find(request.block_hashes, len(request.block_ids), num_blocks)

    def append_cached(self, request: Request, block_ids: list[int]) -> None:
        """Append cached blocks in place of reserved ones; their tokens count as computed."""
        num_tokens = len(block_ids) * self._block_size
        self.pool.hold(block_ids)
        request.block_ids += block_ids
        request.num_published += len(block_ids)
        request.num_reserved -= len(block_ids)
        self.num_reserved -= len(block_ids)
        self._columns.computed[request.slot] += num_tokens
        self._columns.capacity[request.slot] += num_tokens
        if not request.num_preemptions:
            request.num_cached_tokens += num_tokens
            self.num_hit_tokens += num_tokens

    def publish(self, request: Request, num_tokens: int) -> None:
        """Let others find the full blocks among the first `num_tokens` tokens, which are known and scheduled."""
        num_full = num_tokens // self._block_size
        if not self._is_caching or num_full <= request.num_published:
            return
        request.hash_blocks(self.hasher, self._block_size, num_full)
        for index in range(request.num_published, num_full):
            self.cache.publish(request.block_hashes[index], request.block_ids[index])
        request.num_published = num_full

    def publish_sampled(self, step: StepInFlight) -> None:
        """Read and publish blocks that decode rows of a finished step have filled: now all their tokens are known."""
        size, plan = self._block_size, step.plan
        ends = plan.num_computed + plan.num_tokens
        rows = (ends % size == 0).nonzero()[0]  # flatnonzero takes four times as long
        if not len(rows):
            return
        tails = self._columns.tail[plan.slots[rows]]
        data, width = tails.tobytes(), size * tails.itemsize
        for index, (row, end, tail) in enumerate(zip(rows.tolist(), ends[rows].tolist(), tails.tolist(), strict=True)):
            request = step.requests[row]
            if request.slot == NO_SLOT:
                continue
            num_read, num_full = len(request.token_ids), end // size
            is_sampled = num_read < end  # else the block is of the prompt, and its tail may never have been filled
            if is_sampled:
                request.token_ids += tail[num_read % size :]
            if is_sampled and self._is_caching and request.num_published == len(request.block_hashes) == num_full - 1:
                self.hasher.append(request.block_hashes, request.cache_root, data[index * width : (index + 1) * width])
                self.cache.publish(request.block_hashes[-1], request.block_ids[num_full - 1])
                request.num_published = num_full
            else:
                self.publish(request, end)

    def forget_cached(self) -> None:
        """No block is cached any more."""
        self.pool.forget_all()

    # ---- blocks of a sequence

    def admit(self, request: Request, cached: list[int], num_new: int) -> None:
        """First blocks of a sequence that has just got its slot: cached ones, and `num_new` reserved ones."""
        request.num_reserved = len(cached) + num_new
        self.num_reserved += request.num_reserved
        if request.reads_cache and not request.num_preemptions:
            self.num_queried_tokens += len(request.token_ids)
        self.append_cached(request, cached)

    def extend_to(self, request: Request, num_tokens: int) -> list[int]:
        """Take the blocks up to `num_tokens` tokens and publish the full ones. Returns the new blocks."""
        count = -(-num_tokens // self._block_size) - len(request.block_ids)
        block_ids = self.append_new(request, count) if count else []
        self.publish(request, num_tokens)
        return block_ids

    def append_new(self, request: Request, count: int) -> list[int]:
        """Append blocks from the pool, reserved ones first. Returns them."""
        block_ids = self.pool.allocate(count)
        request.block_ids += block_ids
        reserved = min(count, request.num_reserved)
        request.num_reserved -= reserved
        self.num_reserved -= reserved
        self._columns.capacity[request.slot] += count * self._block_size
        return block_ids

    def append_one_each(self, requests: list[Request], slots: list[int]) -> list[int]:
        """Append one block to each of these sequences. Returns the blocks."""
        block_ids = self.pool.allocate(len(requests))
        for request, block_id in zip(requests, block_ids, strict=True):
            request.block_ids.append(block_id)
            if request.num_reserved:
                request.num_reserved -= 1
                self.num_reserved -= 1
        self._columns.capacity[slots] += self._block_size
        return block_ids

    def detach(self, request: Request) -> list[int]:
        """Take the block table away from a request that leaves its slot. The caller releases the blocks returned."""
        block_ids = request.block_ids
        self.num_reserved -= request.num_reserved
        request.block_ids, request.num_reserved, request.num_published = [], 0, 0
        return block_ids
