"""NetworkDrafts: how many tokens the runner's network drafts for each sequence (runner/model_drafts.py).

How far drafts survive is counted by their place among those of a step, over all sequences and for each. Where nothing
was drafted for long, a single token is, so that the counts stay true.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...config.auto_values import MAX_DRAFT_TOKENS
from ..step.plan import Int32, Int64
from .acceptance import Acceptance
from .step_times import StepTimes

_LEAST_GAIN = 1.03  # of tokens per second
_AT_FIRST = np.array([0.8, 0.8, 0.8, 0.8, 0.8, 0.8])  # of each further token: a few outcomes say more
_LENGTHS = np.array([1, 2, 3, 4, 6, 8, 12, 16])  # of drafts that are compared
_TRIES_EVERY = 32  # steps
_TRIED = 4  # sequences
# Steps with drafts, after which one has none, and says what it takes: at first soon, then twice as many each time.
_FIRST_PROBE, _PROBES_EVERY = 4, 128


class NetworkDrafts:
    """A Drafter."""

    is_in_runner = True

    def __init__(
        self, num_slots: int, times: StepTimes, draft_times: StepTimes, *, max_tokens: int = MAX_DRAFT_TOKENS
    ) -> None:
        """
        times: of steps. draft_times: of the network, by how many tokens it drafts one after the other.
        max_tokens: of a draft.
        """
        self.max_tokens = max_tokens
        self._times, self._draft_times = times, draft_times
        self._acceptance = Acceptance(num_slots, _AT_FIRST)
        self._num_without, self._num_with = 0, 0  # steps one after the other
        self._probes_after = _FIRST_PROBE

    def admit(self, slot: int, token_ids: Sequence[int]) -> None:
        self._acceptance.admit(slot)

    def extend(self, slot: int, token_ids: Sequence[int], length: int) -> None:
        """The runner knows the tokens."""

    def follow(self, slots: Int64, lengths: Int32, token_ids: Int32) -> None:
        """The runner knows the tokens."""

    def counts(self, slots: Int64, room: Int32) -> Int32:
        counts = np.zeros(len(slots), np.int32)
        if self._num_with >= self._probes_after:
            return counts
        rows = np.flatnonzero(room > 0)
        survival = self._acceptance.survival(slots[rows], np.zeros(len(rows), np.int32), int(room.max()))
        survival[np.arange(survival.shape[1]) >= room[rows, None]] = 0.0
        width = survival.shape[1]
        lengths = _LENGTHS[width >= _LENGTHS]
        # The most probable tokens first, so those of a row are in their order.
        order = np.argsort(-survival, axis=None, kind="stable")
        is_drafted = order % width < lengths[:, None]  # [lengths, tokens]
        gained = len(slots) + np.cumsum(np.where(is_drafted, survival.reshape(-1)[order], 0.0), axis=1)
        verifying = self._times.seconds(len(slots), np.arange(survival.size + 1))
        rates = gained / (verifying[np.cumsum(is_drafted, axis=1)] + self._draft_times.alone(lengths)[:, None])
        length, index = np.unravel_index(int(rates.argmax()), rates.shape)
        if rates[length, index] > _LEAST_GAIN * len(slots) / verifying[0]:
            chosen = order[: index + 1][is_drafted[length, : index + 1]]
            counts[rows] = np.bincount(chosen // width, minlength=len(rows))
        if not counts.any() and self._num_without >= _TRIES_EVERY:
            counts[rows[:_TRIED]] = 1
        return counts

    def drafts(self, slot: int, length: int, count: int) -> list[int]:
        """Returns none: the runner makes them."""
        return []

    def record_drafts(self, slots: Int64, num_drafts: Int32, num_accepted: Int32, seconds: float) -> None:
        places = np.arange(int(num_drafts.max()), dtype=np.int32)
        rows, seen = np.nonzero((num_drafts[:, None] > places) & (num_accepted[:, None] >= places))
        self._acceptance.count(slots[rows], places[seen], num_accepted[rows] > seen)
        if seconds > 0:
            self._draft_times.record(int(num_drafts.max()), 0, seconds)

    def record_step(self, num_rows: int, num_drafts: int, seconds: float) -> None:
        if not num_drafts and self._num_with >= self._probes_after:
            self._probes_after = min(2 * self._probes_after, _PROBES_EVERY)
        self._num_with = self._num_with + 1 if num_drafts else 0
        self._num_without = 0 if num_drafts else self._num_without + 1
        if seconds > 0:
            self._times.record(num_rows, num_drafts, seconds)
