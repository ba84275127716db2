"""PromptLookup: a sequence goes on as it did where its last tokens occurred before, in its prompt or in its answer.

Each sequence has at most one earlier place that it follows. Every token, whether or not it was drafted, shows if the
place was right, so a place has been tried for some tokens before the model verifies drafts of it.
Source: Saxena, Prompt Lookup Decoding, 2023.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...config.auto_values import LONGEST_LOOKUP, MAX_DRAFT_TOKENS, SHORTEST_LOOKUP
from ..step.plan import Int32, Int64
from .acceptance import Acceptance
from .step_times import StepTimes

_LEAST_GAIN = 1.03  # of tokens per second; below it drafts would not pay for the planning that they hold up
_RESUMES = 4  # tokens that had agreed: after one that does not, the place may still be followed
_MOST_SEARCHED = 65_536  # tokens, for one token of each sequence: a lookup among 8192 takes some 15 us
_PROBES_EVERY = 128  # steps with drafts one after the other, after which one has none, and says what it takes


class PromptLookup:
    """A Drafter."""

    is_in_runner = False

    def __init__(
        self,
        num_slots: int,
        max_model_len: int,
        times: StepTimes,
        *,
        max_tokens: int = MAX_DRAFT_TOKENS,
        shortest: int = SHORTEST_LOOKUP,
        longest: int = LONGEST_LOOKUP,
    ) -> None:
        """
        times: of steps.
        max_tokens: of a draft.
        shortest, longest: the last tokens that must be found again, at least, and that are compared at most.
        """
        self.max_tokens = max_tokens
        self._shortest, self._longest = shortest, longest
        self._times, self._acceptance = times, Acceptance(num_slots)
        # Pages that are never written take no memory.
        self._token_ids = np.zeros((num_slots, max_model_len + 1), np.int32)
        self._next = np.full(num_slots, -1, np.int64)  # place of the token that is expected; -1: none is
        self._matched = np.zeros(num_slots, np.int32)  # tokens before it that agree; 0: it is tried once more
        self._looked_up = np.zeros(num_slots, np.int64)  # when, for those that wait for it
        self._num_followed = 0
        self._num_drafted = 0  # steps with drafts since the last one without

    def admit(self, slot: int, token_ids: Sequence[int]) -> None:
        self._token_ids[slot, : len(token_ids)] = token_ids
        self._acceptance.admit(slot)
        self._looked_up[slot] = 0
        self._begin(slot, len(token_ids))

    def extend(self, slot: int, token_ids: Sequence[int], length: int) -> None:
        self._token_ids[slot, length - len(token_ids) : length] = token_ids
        self._begin(slot, length)

    def _begin(self, slot: int, length: int) -> None:
        self._next[slot], self._matched[slot] = -1, 0
        self._look_up(slot, length)

    def follow(self, slots: Int64, lengths: Int32, token_ids: Int32) -> None:
        self._num_followed += 1
        self._token_ids[slots, lengths - 1] = token_ids
        has_place = self._next[slots] >= 0
        if has_place.any():
            self._compare(slots[has_place], token_ids[has_place])
        lost = np.flatnonzero(self._matched[slots] < self._shortest)
        if len(lost) > 1:
            lost = lost[np.argsort(self._looked_up[slots[lost]], kind="stable")]
            is_within = np.cumsum(lengths[lost]) <= _MOST_SEARCHED
            lost = lost[: max(1, int(is_within.sum()))]
        for row in lost.tolist():
            slot = int(slots[row])
            self._looked_up[slot] = self._num_followed
            self._look_up(slot, int(lengths[row]))

    def _compare(self, slots: Int64, token_ids: Int32) -> None:
        places, matched = self._next[slots], self._matched[slots]
        is_match = self._token_ids[slots, places] == token_ids
        self._acceptance.count(slots, matched, is_match)
        goes_on = is_match | (matched >= _RESUMES)
        self._next[slots] = np.where(goes_on, places + 1, -1)
        self._matched[slots] = np.where(is_match, matched + 1, 0)

    def _look_up(self, slot: int, length: int) -> None:
        """Follow the last place where the most of the last tokens occurred, if these are at least `shortest`. Otherwise
        one that is tried once more stays."""
        token_ids = self._token_ids[slot, :length]
        found = np.flatnonzero(token_ids[:-1] == token_ids[-1])
        matched = 1 if len(found) else 0
        while matched and matched < self._longest:
            earlier = found[found >= matched]
            earlier = earlier[token_ids[earlier - matched] == token_ids[-1 - matched]]
            if not len(earlier):
                break
            found, matched = earlier, matched + 1
        if matched >= self._shortest:
            self._next[slot], self._matched[slot] = found[-1] + 1, matched

    def counts(self, slots: Int64, room: Int32) -> Int32:
        counts = np.zeros(len(slots), np.int32)
        rows = np.flatnonzero((self._next[slots] >= 0) & (room > 0))
        if not len(rows) or self._num_drafted >= _PROBES_EVERY:
            return counts
        own, width = slots[rows], min(self.max_tokens, int(room[rows].max()))
        survival = self._acceptance.survival(own, self._matched[own], width)
        survival[np.arange(width) >= room[rows, None]] = 0.0
        # The most probable tokens first, so those of a row are in their order.
        order = np.argsort(-survival, axis=None, kind="stable")
        gained = len(slots) + np.cumsum(survival.reshape(-1)[order])
        rates = gained / self._times.seconds(len(slots), np.arange(1, len(order) + 1))
        best = int(rates.argmax())
        if rates[best] < _LEAST_GAIN * len(slots) / float(self._times.seconds(len(slots))):
            return counts
        counts[rows] = np.bincount(order[: best + 1] // width, minlength=len(rows))
        return counts

    def drafts(self, slot: int, length: int, count: int) -> list[int]:
        """A place near the end goes on with what is drafted itself."""
        place = int(self._next[slot])
        token_ids: list[int] = self._token_ids[slot, place + np.arange(count) % (length - place)].tolist()
        return token_ids

    def record_drafts(self, slots: Int64, num_drafts: Int32, num_accepted: Int32, seconds: float) -> None:
        """Nothing is learnt from it: `follow` has compared every token with what was expected."""

    def record_step(self, num_rows: int, num_drafts: int, seconds: float) -> None:
        self._num_drafted = self._num_drafted + 1 if num_drafts else 0
        self._times.record(num_rows, num_drafts, seconds)
