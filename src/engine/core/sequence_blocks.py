"""SequenceBlocks: the block tables of running sequences, how they grow, and what the prefix cache learns of them.

A sequence reserves blocks for all its known tokens when it is admitted, and takes them as its tokens are scheduled; so
a prefill does not wait for memory half way. Decode rows take a block more when their last one is full.

Of a group with a window it reserves what it holds at a time: the window, and the chunks of two steps. Blocks before the
window come back while the prompt is computed, and as many are reserved again for its next chunks. A block that others
use does not come back: then a chunk is shorter, or waits.

Full blocks are published to the prefix cache when their tokens are scheduled, so requests that arrive together share a
prefix in the same step: the row that fills a block comes before those that read it. That is safe because the runner
writes the keys and values of a row, layer by layer, before it or a later row attends to them, and executes steps in the
order of their plans.

A sequence has one block table for each group of layers (model/cache_groups.py), with a block of each group for the
same tokens. A group whose layers have a window gives back the blocks before it (`release_passed`).

Does not decide who gets blocks (step_planner.py), nor when they are released (steps_in_flight.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...model.cache_groups import blocks_of_window
from ..step.plan import Int32
from .block_events import BlockEvents
from .block_hashes import BlockHasher
from .block_pool import BlockPool
from .block_residency import BlockResidency
from .kept_states import KeptStates
from .prefix_cache import NO_BLOCK, PrefixCache
from .request import NO_SLOT, Request
from .sequence_states import SequenceStates
from .settings import SchedulerSettings
from .slot_columns import SlotColumns
from .steps_in_flight import StepInFlight, StepsInFlight


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """What continues a request's block tables."""

    block_ids: list[list[int]]  # by group; lists of equal length
    state: bytes | None = None  # hash of the kept state at its end, of models with recurrent states

    @property
    def num_blocks(self) -> int:
        return len(self.block_ids[0])


class SequenceBlocks:
    def __init__(self, settings: SchedulerSettings, columns: SlotColumns) -> None:
        self.block_size = self._block_size = settings.block_size
        self._is_caching = settings.enable_prefix_caching
        self._columns = columns
        self._windows, self.num_groups = settings.windows, settings.num_groups
        self._full_groups = [group for group, window in enumerate(settings.windows) if window is None]
        self._windowed_groups = [group for group, window in enumerate(settings.windows) if window is not None]
        self.hasher = BlockHasher(settings.prefix_caching_hash_algo)
        is_recorded = settings.records_block_events
        self.events = BlockEvents(settings.num_groups, settings.block_size, self.hasher) if is_recorded else None
        kept_states = KeptStates(settings.num_kept_states, settings.max_num_seqs)
        self.cache = PrefixCache(settings.num_groups, kept_states, self.events)
        self.states = SequenceStates(settings, columns, self.cache, self.hasher)
        sample = settings.block_metrics_sample
        self.residency = BlockResidency(sample, settings.seed) if sample else None
        self.pool = BlockPool(settings.num_blocks, self.cache, self.residency)
        self._most_held = [
            blocks_of_window(window, settings.block_size, settings.max_num_batched_tokens)
            if window is not None and settings.enable_chunked_prefill
            else None  # all its blocks
            for window in settings.windows
        ]
        self.num_reserved = 0  # free blocks that admitted sequences will take
        self.num_queried_tokens = 0  # looked up in the prefix cache, and found there; preempted sequences not counted
        self.num_hit_tokens = 0

    @property
    def num_available(self) -> int:
        """Free blocks that are not reserved."""
        return self.pool.num_free - self.num_reserved

    # ---- the prefix cache

    def find_cached(self, request: Request) -> CachedPrefix:
        """The longest prefix that is cached in all groups, each as far as its window reaches back from the end of it.

        Of models with recurrent states, the longest of these at whose end a state is kept. The request's last known
        token is always computed: the next one is sampled from its logits.
        """
        if not request.reads_cache:
            return CachedPrefix([[] for _ in self._windows])
        size, start = self._block_size, request.num_blocks
        stop = (len(request.token_ids) - 1) // size
        request.hash_blocks(self.hasher, size, stop)
        found: dict[int, list[int]] = {}
        for group in self._full_groups:
            found[group] = self.cache.find(request.block_hashes, start, stop, group)
            stop = start + len(found[group])
        for group in self._windowed_groups:
            found[group] = self.cache.find_each(request.block_hashes, start, stop, group)
        if self._windowed_groups or self.states.is_active:
            stop = self._longest_prefix(request, found, start, stop)
            for group in self._windowed_groups:
                passed = max(0, self._first_block(group, stop * size) - start)
                found[group] = [NO_BLOCK] * min(passed, stop - start) + found[group][passed : stop - start]
        has_state = self.states.is_active and stop > start
        state = request.block_hashes[stop - 1] if has_state else None
        return CachedPrefix([found[group][: stop - start] for group in range(len(self._windows))], state)

    def _longest_prefix(self, request: Request, found: dict[int, list[int]], start: int, stop: int) -> int:
        """The largest number of blocks, from `start` to `stop`, of which no group lacks one within its window."""
        valid = set(range(start + 1, stop + 1))
        for group in self._windowed_groups:
            num_present = 0  # without a gap, up to here
            for index, block_id in enumerate(found[group], start + 1):
                num_present = 0 if block_id == NO_BLOCK else num_present + 1
                if index - num_present > max(start, self._first_block(group, index * self._block_size)):
                    valid.discard(index)
        if not self.states.is_active:
            return max(valid, default=start)
        request.num_shared = max(valid, default=start)
        return max((end for end in valid if request.block_hashes[end - 1] in self.cache.states), default=start)

    def _first_block(self, group: int, num_tokens: int) -> int:
        """The first block that a group still needs once `num_tokens` tokens are computed."""
        window = self._windows[group]
        return 0 if window is None else max(0, num_tokens - window + 1) // self._block_size

    def place(self, request: Request, cached: CachedPrefix, count: int) -> list[tuple[int, ...]]:
        """Free blocks, one in each group, for `count` blocks after the cached ones of a waiting request.

        They are cached from now on; the caller has them filled.
        """
        start = cached.num_blocks
        held, num_groups = [block_id for table in cached.block_ids for block_id in _held(table)], len(self._windows)
        self.pool.hold(held)
        taken = self.pool.allocate(count * num_groups)
        places = [tuple(taken[at : at + num_groups]) for at in range(0, len(taken), num_groups)]
        for index, block_ids in enumerate(places, start):
            for group, block_id in enumerate(block_ids):
                self._publish_block(request, index, group, block_id)
        self.pool.release(taken)
        self.pool.release(held)
        return places

    def num_free_among(self, cached: CachedPrefix) -> int:
        """Blocks among these that are free, so that `append_cached` would take them from the free ones."""
        return sum(self.pool.num_free_among(_held(block_ids)) for block_ids in cached.block_ids)

    def append_cached(self, request: Request, cached: CachedPrefix) -> None:
        """Append cached blocks in place of reserved ones; their tokens count as computed."""
        if not (count := cached.num_blocks):
            return
        num_tokens = count * self._block_size
        for table, block_ids in zip(request.block_ids, cached.block_ids, strict=True):
            self.pool.hold(_held(block_ids))
            table += block_ids
        request.num_published += count
        self._use_reserved(request, count * len(self._windows))
        self._columns.computed[request.slot] += num_tokens
        if cached.state is not None:
            self.states.restore(request, cached.state, int(self._columns.computed[request.slot]))
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
            self._publish(request, index)
        request.num_published = num_full

    def _publish(self, request: Request, index: int) -> None:
        is_new = False  # in any group
        for group, table in enumerate(request.block_ids):
            if table[index] != NO_BLOCK:
                is_new |= self._publish_block(request, index, group, table[index])
        if is_new and (index + 1) * self._block_size <= request.num_prompt_tokens and not request.num_preemptions:
            request.num_newly_cached_tokens += self._block_size

    def _publish_block(self, request: Request, index: int, group: int, block_id: int) -> bool:
        """Returns whether the cache did not have it."""
        is_new = self.cache.publish(request.block_hashes[index], block_id, group)
        if is_new and self.events is not None:
            self.events.stored(request, index, group)
        return is_new

    def publish_sampled(self, step: StepInFlight, ends: Int32) -> None:
        """Read and publish blocks that decode rows of a finished step have filled: now all their tokens are known.

        ends: [rows] number of computed tokens that are known. A block that ends there and was published stays so.
        """
        size, plan = self._block_size, step.plan
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
                block = data[index * width : (index + 1) * width]
                self.hasher.append(request.block_hashes, request.inputs.scope, block)
                self._publish(request, num_full - 1)
                request.num_published = num_full
            else:
                self.publish(request, end)

    def forget_cached(self) -> None:
        """Remove all blocks from the prefix cache."""
        self.pool.forget_all()

    def forget(self, hashes: Iterable[bytes]) -> None:
        """Remove the blocks with these hashes from the prefix cache. Sequences that hold them keep them."""
        self.pool.forget(self.cache.ids_of(hashes))

    # ---- blocks of a sequence

    def num_to_reserve(self, num_missing: int, num_tokens: int, num_blocks: int) -> int:
        """Blocks of all groups that a sequence needs at a time until it has `num_missing` more in each table.

        num_tokens: computed ones. num_blocks: in each table.
        """
        wanted = 0
        for group, most in enumerate(self._most_held):
            if most is None:
                wanted += num_missing
            else:
                num_held = num_blocks - self._first_block(group, num_tokens)
                wanted += max(0, min(num_missing, most - num_held))
        return wanted

    def admit(self, request: Request, cached: CachedPrefix, num_reserved: int) -> None:
        """First blocks of a sequence that has just got its slot: cached ones, and blocks reserved in all groups."""
        request.block_ids = [[] for _ in self._windows]
        request.num_passed = [0] * len(self._windows)
        request.num_kept_tokens = 0
        if request.reads_cache and not request.num_preemptions:
            self.num_queried_tokens += len(request.token_ids)
        self.append_cached(request, cached)
        request.num_reserved = num_reserved
        self.num_reserved += num_reserved

    def reserve_again(self, request: Request) -> None:
        """Reserve what the sequence needs for its next chunks, as far as blocks before its windows have come back."""
        num_missing = -(-len(request.token_ids) // self._block_size) - request.num_blocks
        num_computed = int(self._columns.computed[request.slot])
        wanted = self.num_to_reserve(max(0, num_missing), num_computed, request.num_blocks)
        granted = min(wanted, request.num_reserved + max(0, self.num_available))
        self.num_reserved += granted - request.num_reserved
        request.num_reserved = granted

    def reserve_more(self, request: Request, num_tokens: int, margin: int) -> bool:
        """Reserve what the sequence needs for some more known tokens. False if fewer than `margin` would be left."""
        num_missing = -(-(len(request.token_ids) + num_tokens) // self._block_size) - request.num_blocks
        num_computed = int(self._columns.computed[request.slot])
        wanted = self.num_to_reserve(max(0, num_missing), num_computed, request.num_blocks) - request.num_reserved
        if wanted > max(0, self.num_available - margin):
            return False
        request.num_reserved += max(0, wanted)
        self.num_reserved += max(0, wanted)
        return True

    def reachable_end(self, request: Request, end: int) -> int:
        """The largest end of a chunk, at most `end`, for which there are enough blocks."""
        most = (request.num_reserved + max(0, self.num_available)) // len(self._windows)
        return min(end, (request.num_blocks + most) * self._block_size)

    def extend_to(self, request: Request, num_tokens: int) -> list[int]:
        """Take the blocks up to `num_tokens` tokens and publish the full ones. Returns the new blocks (append_new).

        The sequence may have more already, which drafts have taken that were rejected.
        """
        count = -(-num_tokens // self._block_size) - request.num_blocks
        block_ids = self.append_new(request, count) if count > 0 else []
        self.publish(request, num_tokens)
        return block_ids

    def append_new(self, request: Request, count: int) -> list[int]:
        """Append `count` blocks to each table, reserved ones first. Returns them: by position, one of each group."""
        num_groups = len(self._windows)
        taken = self.pool.allocate(count * num_groups)
        for group, table in enumerate(request.block_ids):
            table += taken[group::num_groups]
        self._use_reserved(request, len(taken))
        self._columns.capacity[request.slot] += count * self._block_size
        return taken

    def append_one_each(self, requests: list[Request], slots: list[int]) -> list[int]:
        """Append one block to each table of these sequences. Returns them: by sequence, one of each group."""
        num_groups = len(self._windows)
        taken = self.pool.allocate(len(requests) * num_groups)
        block_ids = iter(taken)
        for request in requests:
            for table in request.block_ids:
                table.append(next(block_ids))
            if request.num_reserved:
                self._use_reserved(request, num_groups)
        self._columns.capacity[slots] += self._block_size
        return taken

    def _use_reserved(self, request: Request, count: int) -> None:
        """The request has got `count` blocks: as far as it can, in place of those that it had reserved."""
        reserved = min(count, request.num_reserved)
        request.num_reserved -= reserved
        self.num_reserved -= reserved

    def release_passed(self, request: Request, steps: StepsInFlight) -> None:
        """Give back the blocks that are before the windows of the request's next token."""
        num_computed = int(self._columns.computed[request.slot])
        for group in self._windowed_groups:
            table, begin = request.block_ids[group], request.num_passed[group]
            end = self._first_block(group, num_computed)
            if passed := _held(table[begin:end]):
                request.passing_until = int(self._columns.last_step[request.slot])
                steps.release(passed, request.passing_until, is_table=False)
            if end > begin:
                table[begin:end] = [NO_BLOCK] * (end - begin)
                request.num_passed[group] = end

    def detach(self, request: Request) -> list[int]:
        """Take the block tables away from a request that leaves its slot. The caller releases the blocks returned."""
        by_position = zip(*request.block_ids, strict=True)
        block_ids = [block_id for position in by_position for block_id in position if block_id != NO_BLOCK]
        self.num_reserved -= request.num_reserved
        request.block_ids, request.num_reserved, request.num_published = [], 0, 0
        return block_ids


def _held(block_ids: list[int]) -> list[int]:
    return [block_id for block_id in block_ids if block_id != NO_BLOCK]
