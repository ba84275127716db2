"""PromptLookup: a sequence goes on as it did where its last tokens occurred before, in its prompt or in its answer; as
the request predicts it; or as the answer to an earlier request did.

Each sequence has at most one earlier place that it follows. Every token, whether or not it was drafted, shows if the
place was right, so a place has been tried for some tokens before the model verifies drafts of it. The place of the most
tokens that agree is followed; of equal ones what the request predicts comes first, then its own text, then past
answers (past_outputs.py). A predicted text is followed from its beginning.
Source: Saxena, Prompt Lookup Decoding, 2023.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...config.auto_values import LONGEST_LOOKUP, MAX_DRAFT_TOKENS, SHORTEST_LOOKUP
from ..step.plan import Int32, Int64
from .acceptance import Acceptance
from .past_outputs import END, NONE, PastOutputs
from .step_times import StepTimes

_LEAST_GAIN = 1.03  # of tokens per second; below it drafts would not pay for the planning that they hold up
_RESUMES = 4  # tokens that had agreed: after one that does not, the place may still be followed
_MOST_SEARCHED = 65_536  # tokens, for one token of each sequence: a lookup among 8192 takes some 15 us
_PROBES_EVERY = 128  # steps with drafts one after the other, after which one has none, and says what it takes
_TRUST = 8  # the beginning of a predicted text counts as if this number of tokens had agreed
_OWN, _PREDICTED, _PAST = range(3)  # kinds of texts


class PromptLookup:
    """A Drafter and an AnswerReader."""

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
        past_tokens: int = 0,
    ) -> None:
        """
        times: of steps.
        max_tokens: of a draft.
        shortest, longest: the last tokens that must be found again, at least, and that are compared at most.
        past_tokens: of earlier answers, that are kept.
        """
        self.max_tokens = max_tokens
        self._shortest, self._longest = shortest, longest
        self._times, self._acceptance = times, Acceptance(num_slots, num_kinds=3)
        # All texts are one array, so that a place is a number, whatever text it is in. The row of a sequence has what
        # its request predicts, then its own text. Pages that are never written take no memory.
        self._width = 2 * max_model_len + 1
        self._first_past = num_slots * self._width
        self._texts = np.zeros(self._first_past + (past_tokens + 1 if past_tokens else 0), np.int32)
        self._past: PastOutputs | None = None
        if past_tokens:
            self._past = PastOutputs(self._texts[self._first_past :], self._first_past, longest)
        self._begins = np.arange(num_slots, dtype=np.int64) * self._width  # of the own text of each sequence
        self._num_prompt_tokens = np.zeros(num_slots, np.int64)
        self._is_shared = np.zeros(num_slots, np.bool_)
        self._reached = np.zeros(num_slots, np.int64)  # place in the predicted text after the last token that agreed
        self._next = np.full(num_slots, -1, np.int64)  # place of the token that is expected; -1: none is
        self._matched = np.zeros(num_slots, np.int32)  # tokens before it that agree; 0: it is tried once more
        self._looked_up = np.zeros(num_slots, np.int64)  # when, for those that wait for it
        self._num_followed = 0
        self._num_drafted = 0  # steps with drafts since the last one without

    # ---- the texts

    def announce(self, slot: int, num_prompt_tokens: int, predicted: Sequence[int], *, is_shared: bool) -> None:
        row = slot * self._width
        self._texts[row : row + len(predicted)] = predicted
        self._begins[slot], self._reached[slot] = row + len(predicted), row
        self._num_prompt_tokens[slot], self._is_shared[slot] = num_prompt_tokens, is_shared

    def admit(self, slot: int, token_ids: Sequence[int]) -> None:
        begin = int(self._begins[slot])
        self._texts[begin : begin + len(token_ids)] = token_ids
        self._acceptance.admit(slot)
        self._looked_up[slot] = 0
        self._begin(slot, len(token_ids))
        if begin > (row := slot * self._width) and len(token_ids) == self._num_prompt_tokens[slot]:
            self._next[slot], self._matched[slot] = row, max(_TRUST, self._shortest)

    def extend(self, slot: int, token_ids: Sequence[int], length: int) -> None:
        end = int(self._begins[slot]) + length
        self._texts[end - len(token_ids) : end] = token_ids
        self._begin(slot, length)

    def release(self, slot: int, length: int) -> None:
        if self._past is not None and self._is_shared[slot]:
            begin = int(self._begins[slot])
            self._past.add(self._texts[begin + int(self._num_prompt_tokens[slot]) : begin + length])

    def forget(self) -> None:
        if self._past is not None:
            self._past.clear()

    def is_predicted(self, slot: int) -> bool:
        return bool(self._kinds(np.array([slot]))[0] == _PREDICTED)

    def _kinds(self, slots: Int64) -> Int64:
        """[R] The kind of text in which the expected token of each is."""
        places = self._next[slots]
        kinds = np.where(places < self._begins[slots], _PREDICTED, _OWN)
        return np.where(places >= self._first_past, _PAST, kinds)

    # ---- places that are followed

    def _begin(self, slot: int, length: int) -> None:
        self._next[slot], self._matched[slot] = -1, 0
        self._look_up(slot, length)
        if self._past is not None:
            self._look_into_past(np.array([slot]), np.array([length]))

    def follow(self, slots: Int64, lengths: Int32, token_ids: Int32) -> None:
        self._num_followed += 1
        self._texts[self._begins[slots] + lengths - 1] = token_ids
        has_place = self._next[slots] >= 0
        if has_place.any():
            self._compare(slots[has_place], token_ids[has_place])
        lost = all_lost = np.flatnonzero(self._matched[slots] < self._shortest)
        if len(lost) > 1:
            lost = lost[np.argsort(self._looked_up[slots[lost]], kind="stable")]
            sizes = self._begins[slots[lost]] - slots[lost] * self._width + lengths[lost]
            is_within = np.cumsum(sizes) <= _MOST_SEARCHED
            lost = lost[: max(1, int(is_within.sum()))]
        for row in lost.tolist():
            slot = int(slots[row])
            self._looked_up[slot] = self._num_followed
            self._look_up(slot, int(lengths[row]))
        if self._past is not None and len(all_lost):
            self._look_into_past(slots[all_lost], lengths[all_lost])

    def _compare(self, slots: Int64, token_ids: Int32) -> None:
        places, matched, kinds = self._next[slots], self._matched[slots], self._kinds(slots)
        is_match = self._texts[places] == token_ids
        self._acceptance.count(slots, matched, is_match, kinds)
        goes_on = is_match | (matched >= _RESUMES)
        predicted = is_match & (kinds == _PREDICTED)
        self._reached[slots[predicted]] = places[predicted] + 1
        # Neither a predicted text nor an earlier answer goes on after its end.
        goes_on &= (kinds != _PREDICTED) | (places + 1 < self._begins[slots])
        goes_on &= (kinds != _PAST) | (self._texts[np.minimum(places + 1, len(self._texts) - 1)] != END)
        self._next[slots] = np.where(goes_on, places + 1, -1)
        self._matched[slots] = np.where(is_match & goes_on, matched + 1, 0)

    def _look_up(self, slot: int, length: int) -> None:
        """Follow the place where the most of the last tokens occurred, if these are at least `shortest`: of several the
        next one of the predicted text, or the last one. Otherwise one that is tried once more stays."""
        row, begin = slot * self._width, int(self._begins[slot])
        token_ids = self._texts[row : begin + length]
        found = np.flatnonzero(token_ids[:-1] == token_ids[-1])
        if begin > row:
            found = found[found != begin - row - 1]  # nothing follows the end of the predicted text
        matched = 1 if len(found) else 0
        while matched and matched < self._longest:
            earlier = found[found >= matched]
            earlier = earlier[token_ids[earlier - matched] == token_ids[-1 - matched]]
            if not len(earlier):
                break
            found, matched = earlier, matched + 1
        if matched >= self._shortest:
            places = row + found + 1
            if len(predicted := places[places < begin]):
                ahead = predicted[predicted >= self._reached[slot]]
                places = ahead[:1] if len(ahead) else predicted
            self._next[slot], self._matched[slot] = places[-1], matched

    def _look_into_past(self, slots: Int64, lengths: Int32 | Int64) -> None:
        """Follow past answers where more of the last tokens agree than in the text of the request."""
        assert self._past is not None
        is_shared = self._is_shared[slots]
        slots, lengths = slots[is_shared], lengths[is_shared]
        if not len(slots):
            return
        offsets = np.arange(-self._past.num_compared, 0)
        known = lengths[:, None] + offsets
        ends = self._texts[np.maximum(self._begins[slots, None] + known, 0)]
        ends[known < 0] = NONE
        places, matched = self._past.find(ends)
        is_longer = matched > self._matched[slots]
        self._next[slots[is_longer]] = places[is_longer]
        self._matched[slots[is_longer]] = matched[is_longer]

    # ---- the next step

    def counts(self, slots: Int64, room: Int32) -> Int32:
        counts = np.zeros(len(slots), np.int32)
        rows = np.flatnonzero((self._next[slots] >= 0) & (room > 0))
        if not len(rows) or self._num_drafted >= _PROBES_EVERY:
            return counts
        own, width = slots[rows], min(self.max_tokens, int(room[rows].max()))
        kinds = self._kinds(own)
        survival = self._acceptance.survival(own, self._matched[own], width, kinds)
        left = np.where(kinds == _PREDICTED, self._begins[own] - self._next[own], width)
        survival[np.arange(width) >= np.minimum(room[rows], left)[:, None]] = 0.0
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
        """A place near the end of the own text goes on with what is drafted itself."""
        place, begin = int(self._next[slot]), int(self._begins[slot])
        if place >= self._first_past:
            assert self._past is not None
            return self._past.after(place, count)
        end = begin if place < begin else begin + length
        token_ids: list[int] = self._texts[place + np.arange(count) % (end - place)].tolist()
        return token_ids

    def record_drafts(self, slots: Int64, num_drafts: Int32, num_accepted: Int32, seconds: float) -> None:
        """Nothing is learnt from it: `follow` has compared every token with what was expected."""

    def record_step(self, num_rows: int, num_drafts: int, seconds: float) -> None:
        self._num_drafted = self._num_drafted + 1 if num_drafts else 0
        if seconds > 0:
            self._times.record(num_rows, num_drafts, seconds)
