"""SlotColumns: the state of running sequences in numpy columns, one entry per slot.

A step of 256 decode rows is planned and finished with a few array operations on these columns; no Python code runs per
row. The tokens sampled since a sequence's last full block are a column too (`tail`); they are moved to
`Request.token_ids` block by block.

Owns the slots: which are free, and which the runner has yet to release. Does not know blocks: see sequence_blocks.py.
"""

from __future__ import annotations

import numpy as np

from ..step.plan import Int32, Int64
from .request import NO_SLOT, Request


class SlotColumns:
    """Slots 0 to num_slots - 1. Index columns with int64 arrays: numpy takes these three times as fast as int32."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self.block_size = block_size
        self.free_slots = list(range(num_slots - 1, -1, -1))  # a stack, slot 0 on top
        self.released_slots: list[int] = []  # for the next plan
        self.computed = np.zeros(num_slots, np.int32)  # tokens in the KV cache once all planned steps are executed
        self.target = np.zeros(num_slots, np.int32)  # known tokens, plus those that planned steps will sample
        self.max_length = np.zeros(num_slots, np.int32)
        self.capacity = np.zeros(num_slots, np.int32)  # tokens that the sequence's blocks can hold
        self.last_step = np.zeros(num_slots, np.int64)  # the newest plan with a row for this slot
        self.serial = np.full(num_slots, -1, np.int64)  # arrival of the sequence in this slot; -1: the slot is free
        self.route = np.zeros(num_slots, np.int64)
        self.known = np.zeros(num_slots, np.int32)  # tokens read back, prompt included
        self.admitted = np.zeros(num_slots, np.int32)  # of those, the ones that were known when it got the slot
        self.tail = np.zeros((num_slots, block_size), np.int32)  # the last of them, at position % block_size
        self.record_at = np.zeros(num_slots, np.int32)  # from this length on, a token needs an output record
        # No decode row: forced tokens wait for the steps in flight, or one of these says how many drafts are valid.
        self.is_held = np.zeros(num_slots, np.bool_)
        self.ones = np.ones(num_slots, np.int32)  # constant, for plans of decode rows
        self._flat_tail = self.tail.reshape(-1)  # one index is five times as fast as two

    def take(self, request: Request) -> None:
        """Give the request a free slot. None of its tokens is computed."""
        slot = request.slot = self.free_slots.pop()
        self.computed[slot] = 0
        self.capacity[slot] = 0
        self.target[slot] = len(request.token_ids)
        self.max_length[slot] = request.stop.max_length
        self.serial[slot] = request.arrival
        self.route[slot] = request.route
        self.record_at[slot] = 0  # its next token is reported together with the number of cached tokens
        self.is_held[slot] = False
        self._set_known(request)
        self.admitted[slot] = self.known[slot]

    def _set_known(self, request: Request) -> None:
        known = len(request.token_ids)
        last = known % self.block_size
        self.known[request.slot] = known
        self.tail[request.slot, :last] = request.token_ids[known - last :]

    def append_forced(self, request: Request, token_ids: list[int]) -> None:
        """Append tokens that need not be sampled, after `read_tail`. No step in flight has a row of the sequence."""
        request.token_ids += token_ids
        request.has_forced = True
        request.num_untold += len(token_ids)
        self.target[request.slot] += len(token_ids)
        self._set_known(request)

    def give_back(self, request: Request) -> int:
        """Take the request's slot away. Returns it, to be freed."""
        request.has_forced, request.num_untold = False, 0
        slot, request.slot = request.slot, NO_SLOT
        self.serial[slot] = -1
        return slot

    def free(self, slot: int) -> None:
        """The next plan releases it."""
        self.free_slots.append(slot)
        self.released_slots.append(slot)

    def pop_released(self) -> list[int]:
        released, self.released_slots = self.released_slots, []
        return released

    def release_again(self, slots: list[int]) -> None:
        """Release the slots of a failed plan again: the runner may not have released them.

        A slot with a new sequence needs no release: its admission, in a later plan, follows one.
        """
        free = set(self.free_slots).difference(self.released_slots)
        self.released_slots += [slot for slot in slots if slot in free]

    def append(self, slots: Int64, token_ids: Int32) -> Int32:
        """Append one sampled token to each of these sequences; returns their new lengths."""
        lengths = self.known[slots]
        size = self.block_size
        self._flat_tail[slots * size + lengths % size] = token_ids
        lengths += 1
        self.known[slots] = lengths
        return lengths

    def read_tail(self, request: Request) -> None:
        """Move the sampled tokens in `tail` to the list of the request's tokens."""
        have = len(request.token_ids)
        missing = int(self.known[request.slot]) - have
        if missing:
            first = have % self.block_size
            request.token_ids += self.tail[request.slot, first : first + missing].tolist()
