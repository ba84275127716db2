"""SequenceStates: which recurrent states are kept for later sequences, and where a prompt's chunks end for that.

A sequence can continue from a prefix only with the state at its end, and the runner has only the newest state of each
sequence. So copies are kept at the ends of blocks (kept_states.py):

- at the end of a prompt's last full block, and where a prompt leaves what it shares with an earlier one: its blocks are
  cached that far, and no state is. Chunks of prompts are cut there, at least `retention_interval` tokens apart.
- at the ends of other chunks, and every `retention_interval` tokens while answers are generated. Of these a sequence
  keeps the newest only: the next turn of a conversation continues from it.

A copy reads and writes the state once, as each step does, so one in every 64 steps costs 1.6 % of the states' traffic.

A row with drafts ends at most where a state is to be kept, and its state is found only if all of them are accepted:
then it is the one after the row's tokens. Until then an earlier state of the sequence stays.

A state can be used from the step after the one that computes it; blocks, in the same step. A waiting request whose
prefix is being computed in the step that is planned waits for the state, if that saves half of its tokens.
"""

from __future__ import annotations

import numpy as np

from ..step.plan import Int32
from .block_hashes import BlockHasher
from .prefix_cache import PrefixCache
from .request import NO_SLOT, Request
from .settings import SchedulerSettings
from .slot_columns import SlotColumns
from .step_draft import PrefillRow, StepDraft
from .steps_in_flight import StepInFlight


class SequenceStates:
    def __init__(
        self, settings: SchedulerSettings, columns: SlotColumns, cache: PrefixCache, hasher: BlockHasher
    ) -> None:
        size = settings.block_size
        self._block_size = size
        self._interval = -(-settings.retention_interval // size) * size  # tokens
        self._cuts_prompts = settings.enable_chunked_prefill
        self._columns = columns
        self._cache = cache
        self._kept = cache.states
        self._hasher = hasher
        self.is_active = settings.num_kept_states > 0
        self._restored: list[tuple[int, int]] = []  # for the next plan: places of kept states, and slots
        self._coming: set[bytes] = set()  # hashes of prefixes that end a chunk of the step that is being planned

    # ---- while a step is planned

    def room_for_drafts(self, computed: Int32) -> Int32:
        """How many drafts a row can have that does not pass a place where the state of its sequence is kept.

        computed: [R] tokens before the row, whose last known token is computed too.
        """
        if not self.is_active:
            return np.full(len(computed), np.iinfo(np.int32).max, np.int32)
        return np.int32(self._interval - 1) - computed % np.int32(self._interval)

    def restore(self, request: Request, block_hash: bytes, num_tokens: int) -> None:
        """The request, which has a slot, continues from the state after this prefix."""
        request.num_kept_tokens = num_tokens
        self._restored.append((self._kept.use(block_hash), request.slot))

    def chunk_stop(self, request: Request, start: int, known: int) -> int:
        """The latest end of a prompt's chunk that begins at `start`: where its state is to be kept, else `known`."""
        if not self.is_active or not self._cuts_prompts or request.needs_whole:
            return known
        size = self._block_size
        for end in (request.num_shared, (known - 1) // size):  # blocks
            if end * size > start and end * size - request.num_kept_tokens >= self._interval:
                request.hash_blocks(self._hasher, size, end)
                block_hash = request.block_hashes[end - 1]
                if block_hash not in self._kept and block_hash not in self._coming:
                    return end * size
        return known

    def expect(self, row: PrefillRow) -> None:
        """The row's chunk has its end, unless it ends before `stop`."""
        if row.is_cut:
            self._coming.add(row.request.block_hashes[row.end // self._block_size - 1])

    def is_coming(self, request: Request, start: int) -> bool:
        """Whether the step that is being planned computes the state after half or more of what the request lacks."""
        if not request.reads_cache:
            return False
        known = len(request.token_ids)
        least = start + (known - start + 1) // 2
        ends = range((known - 1) // self._block_size, -(-least // self._block_size) - 1, -1) if self._coming else ()
        return any(request.block_hashes[end - 1] in self._coming for end in ends)

    def complete(self, draft: StepDraft) -> None:
        """Choose the states that the step keeps, now that its rows are known. States of decode rows are found when the
        step is finished: the hashes of their blocks are not known before."""
        if not self.is_active:
            return
        rows: dict[bytes, tuple[PrefillRow, int]] = {}  # published last: a state of this step must not replace another
        for row in draft.prefills:
            block_hash = self._hash_to_keep(row)
            if block_hash is None or block_hash in rows:
                continue
            place = self._kept.take(row.request.passing_state)
            if place is not None:
                draft.kept_states.append((row.request.slot, place))
                rows[block_hash] = row, place
        outputs = 1 if draft.decode_outputs is None else draft.decode_outputs
        ends = self._columns.computed[draft.decode_slots] + outputs
        for index in (ends % self._interval == 0).nonzero()[0].tolist():
            request = draft.decodes[index]
            has_drafts = draft.decode_outputs is not None and draft.decode_outputs[index] > 1
            place = self._kept.take(None if has_drafts else request.passing_state)
            if place is not None:
                draft.kept_states.append((request.slot, place))
                draft.unnamed_states.append((index, place))
        for block_hash, (row, place) in rows.items():
            self._kept.publish(block_hash, place, is_passing=not row.is_cut)
            row.request.passing_state = None if row.is_cut else block_hash
            if row.is_cut:
                row.request.num_kept_tokens = row.end
        draft.restored_states, self._restored = self._restored, []
        self._coming.clear()

    def _hash_to_keep(self, row: PrefillRow) -> bytes | None:
        """The hash of the prefix that ends with the row, if its state is to be kept."""
        if row.end % self._block_size:
            return None
        block_hash = row.request.block_hashes[row.end // self._block_size - 1]
        if block_hash in self._kept:
            self._kept.use(block_hash)
            return None
        return block_hash if self._cache.has(block_hash) else None

    # ---- when a step is finished

    def publish_sampled(self, step: StepInFlight, ends: Int32) -> None:
        """Let others find the states that decode rows have left: now the hashes of their blocks are known.

        Call it after the blocks were published up to `ends`, and before requests end.
        ends: [rows] number of computed tokens that are known.
        """
        unknown: list[tuple[int, int]] = []
        for row, place in step.unnamed_states:
            request, end = step.requests[row], int(step.plan.num_computed[row] + step.plan.num_tokens[row])
            if ends[row] < end:
                unknown.append((row, place))
                continue
            index = end // self._block_size - 1
            block_hash = request.block_hashes[index] if len(request.block_hashes) > index else b""
            is_wanted = request.slot != NO_SLOT and self._cache.has(block_hash) and block_hash not in self._kept
            if is_wanted:
                self._kept.drop_passing(request.passing_state)
                self._kept.publish(block_hash, place, is_passing=True)
                request.passing_state = block_hash
            else:
                self._kept.give_back(place)
        step.unnamed_states = unknown

    def give_back(self, step: StepInFlight) -> None:
        """The states that were not published are of rejected drafts."""
        for _, place in step.unnamed_states:
            self._kept.give_back(place)
