"""Drafting: which rows of a step get drafts, and how many were accepted. A drafter says what may follow (drafter.py).

While drafts would pay for some sequence, a step is planned only when the tokens of the one before are known. Else steps
are planned ahead, as without drafts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from ...config.auto_values import most_drafts
from ..api import DraftCounts, VerifiedDraft
from ..step.plan import Int32, Int64, StepPlan
from ..step.result import StepResult
from .request import Request
from .sequence_blocks import SequenceBlocks
from .settings import SchedulerSettings
from .slot_columns import SlotColumns
from .step_draft import StepDraft

T = TypeVar("T")
_LONGEST_GAP_S = 0.02  # between two steps; a longer one says that nothing was to be done
logger = logging.getLogger(__name__)


class Drafting:
    """Does nothing without a drafter. One that fails is not asked again: requests go on without drafts."""

    def __init__(self, settings: SchedulerSettings, columns: SlotColumns, blocks: SequenceBlocks) -> None:
        self._columns, self._blocks = columns, blocks
        self._settings, self._num_groups = settings.drafting, settings.num_groups
        self._drafter = None if self._settings is None else self._settings.drafter
        self._reader = None if self._settings is None else self._settings.reader
        self._max_step_tokens, self._block_size = settings.max_num_batched_tokens, settings.block_size
        self._has_drafts = np.zeros(settings.max_num_seqs, np.bool_)  # by slot: its sequence may get some
        self._is_predicted = np.zeros(settings.max_num_seqs, np.bool_)  # by slot: its draft in flight
        self._epoch = 0  # of the prefix cache: answers of an earlier one are forgotten
        self._num_drafts = 0
        self._verified_at = 0.0  # when the step before was
        self._last: tuple[int, int, float] | None = None  # its rows, drafts and seconds, where it is to be recorded
        self._counted: tuple[Int64, Int32, Int32] | None = None  # slots, room, counts: until a step is verified
        self._num_tokens = 0
        self._accepted = np.zeros(0 if self._drafter is None else self._drafter.max_tokens, np.int64)

    @property
    def counts(self) -> DraftCounts | None:
        if self._settings is None:
            return None
        return DraftCounts(self._num_drafts, self._num_tokens, tuple(self._accepted.tolist()))

    def admit(self, request: Request, num_waiting: int) -> None:
        """The request has got its slot. num_waiting: requests that go on waiting."""
        if self._drafter is None or self._settings is None:
            return
        sampling = request.inputs.sampling
        is_plain = sampling.constraint is None and sampling.reasoning is None and not sampling.has_penalties
        is_plain = is_plain and not sampling.logits_processors
        known, settings = len(request.token_ids), self._settings
        has_room = known < min(settings.max_model_len, request.stop.max_length - 1)
        is_allowed = num_waiting <= settings.max_num_waiting and (settings.in_order or is_plain)
        # A network drafts what the model without adapters would say.
        is_allowed &= request.inputs.adapter is None or not self._drafter.is_in_runner
        self._has_drafts[request.slot] = has_room and is_allowed
        if self._has_drafts[request.slot]:
            drafter, token_ids = self._drafter, request.token_ids
            if (reader := self._reader) is not None:
                if request.inputs.scope.epoch > self._epoch:  # the prefix cache was reset
                    self._epoch = request.inputs.scope.epoch
                    self._ask(reader.forget)
                # An answer must not show in the times of other tenants, and says nothing of another adapter.
                is_shared = not request.inputs.scope.salt and request.inputs.adapter is None
                self._ask(
                    lambda: reader.announce(
                        request.slot, request.num_prompt_tokens, request.prediction, is_shared=is_shared
                    )
                )
            self._ask(lambda: drafter.admit(request.slot, token_ids))

    def end(self, request: Request) -> None:
        """The sequence ends, which has its slot still."""
        slot, is_of_epoch = request.slot, request.inputs.scope.epoch == self._epoch
        has_drafts = self._drafter is not None and self._has_drafts[slot]
        if (reader := self._reader) is not None and has_drafts and is_of_epoch:
            self._ask(lambda: reader.release(slot, int(self._columns.known[slot])))

    def extend(self, request: Request, token_ids: list[int]) -> None:
        """Tokens were appended to a running sequence that were not sampled."""
        if self._drafter is not None and self._has_drafts[request.slot]:
            drafter = self._drafter
            self._ask(lambda: drafter.extend(request.slot, token_ids, len(request.token_ids)))

    def follow(self, slots: Int64, lengths: Int32, token_ids: Int32) -> None:
        """One token was appended to each of these sequences, which have these lengths now."""
        if self._drafter is None:
            return
        if not (own := self._has_drafts[slots]).all():
            slots, lengths, token_ids = slots[own], lengths[own], token_ids[own]
        if len(slots):
            drafter = self._drafter
            self._ask(lambda: drafter.follow(slots, lengths, token_ids))

    def waits(self, running: Int64) -> bool:
        """Whether the next step is planned when the tokens of those in flight are known. running: slots."""
        if self._drafter is None or not len(running):
            return False
        room = self._room(running)
        room[self._columns.target[running] - self._columns.computed[running] > 1] = 0  # they compute a prompt
        return bool(self._counts(running, room).any())

    def add(self, draft: StepDraft, num_running: int) -> None:
        """Add drafts to the decode rows of a step, as far as blocks are free. num_running: sequences."""
        slots, columns = draft.decode_slots, self._columns
        if self._drafter is None or not len(slots):
            return
        room = self._room(slots)
        room[columns.target[slots] != columns.known[slots]] = 0
        counts = self._counts(slots, room)
        for row in np.flatnonzero(counts).tolist():
            request = draft.decodes[row]
            counts[row] = self._with_blocks(draft, num_running, request, int(counts[row]))
            if self._drafter is None or self._drafter.is_in_runner:
                continue
            token_ids = self._drafts(request.slot, int(columns.known[request.slot]), int(counts[row]))
            counts[row] = len(token_ids)
            if token_ids:
                self._is_predicted[request.slot] = self._from_prediction(request.slot)
                draft.drafts.append((request.slot, token_ids))
        if draft.drafts or (counts.any() and self._drafter is not None and self._drafter.is_in_runner):
            draft.decode_outputs = counts + np.int32(1)

    def _room(self, slots: Int64) -> Int32:
        """[R] The most drafts of each row, by its length and what a step can hold."""
        assert self._drafter is not None
        assert self._settings is not None
        columns = self._columns
        lengths = columns.known[slots]
        room = np.minimum(columns.max_length[slots], self._settings.max_model_len) - lengths - 1
        most = most_drafts(len(slots), self._max_step_tokens, self._drafter.max_tokens)
        room = np.minimum(room, self._blocks.states.room_for_drafts(lengths - 1))
        room = np.clip(room, 0, most).astype(np.int32)
        room[~self._has_drafts[slots]] = 0
        return room

    def _counts(self, slots: Int64, room: Int32) -> Int32:
        """A copy of what the drafter says, which is asked once between two steps: `waits` and `add` need it."""
        drafter = self._drafter
        if drafter is None or not room.any():
            return np.zeros(len(slots), np.int32)
        if (last := self._counted) is not None and np.array_equal(last[0], slots) and np.array_equal(last[1], room):
            return last[2].copy()
        counts = self._ask(lambda: drafter.counts(slots, room))
        if counts is None:
            return np.zeros(len(slots), np.int32)
        self._counted = slots.copy(), room.copy(), counts
        return counts.copy()

    def _drafts(self, slot: int, length: int, count: int) -> list[int]:
        drafter = self._drafter
        if drafter is None or not count:
            return []
        return self._ask(lambda: drafter.drafts(slot, length, count)) or []

    def _from_prediction(self, slot: int) -> bool:
        reader = self._reader
        return reader is not None and bool(self._ask(lambda: reader.is_predicted(slot)))

    def _with_blocks(self, draft: StepDraft, num_running: int, request: Request, count: int) -> int:
        """Take blocks for up to `count` drafts. Returns how many have one."""
        columns, blocks, slot = self._columns, self._blocks, request.slot
        free = int(columns.capacity[slot] - columns.computed[slot]) - 1  # the last known token has one
        if count > free:
            num_new = -(-(count - free) // self._block_size)
            # One free block more for each running sequence, as for an admission.
            margin = num_running * self._num_groups
            if blocks.num_available - num_new * self._num_groups < margin:
                return max(0, free)
            draft.add_blocks(slot, blocks.append_new(request, num_new))
        return count

    def verified(self, plan: StepPlan, result: StepResult, seconds: float) -> dict[int, VerifiedDraft]:
        """The plan has this result, after this time. Returns its drafts, by the row of the step."""
        if result.draft_error:
            self._drafter = None  # the runner has said it
        self._record_last(seconds)
        self._counted = None
        if self._drafter is None:
            return {}
        drafter, num_drafts = self._drafter, plan.num_outputs - 1
        is_alone = plan.num_rows > 0 and bool((plan.num_outputs == plan.num_tokens).all())
        is_alone &= not result.is_of_new_shape
        draft_seconds = result.draft_seconds if is_alone else 0.0
        took = seconds - draft_seconds if is_alone else 0.0  # the time of prompts and of a capture says nothing
        self._last = (plan.num_rows, int(num_drafts.sum()), took) if plan.num_rows else None
        if result.num_valid is not None and len(rows := plan.drafted_rows):
            num_accepted = result.num_valid[rows] - 1
            self._num_drafts += len(rows)
            self._num_tokens += int(num_drafts[rows].sum())
            by_position = np.bincount(num_accepted, minlength=len(self._accepted) + 1)
            self._accepted += by_position[::-1].cumsum()[::-1][1:]
            slots = plan.slots[rows].astype(np.int64)
            self._has_drafts[list(result.undraftable)] = False
            is_guess = ~np.isin(slots, result.undrafted)
            guesses = slots[is_guess], num_drafts[rows][is_guess], num_accepted[is_guess]
            if is_guess.any():
                self._ask(lambda: drafter.record_drafts(*guesses, draft_seconds if is_guess.all() else 0.0))
            columns = rows, num_drafts[rows], num_accepted, self._is_predicted[slots]
            return {row: VerifiedDraft(*own) for row, *own in zip(*(each.tolist() for each in columns), strict=True)}
        return {}

    def _record_last(self, seconds: float) -> None:
        """Record the step before one that took `seconds`: what was done between the two, after it, is a part of it."""
        now, drafter, last = time.perf_counter(), self._drafter, self._last
        between, self._verified_at, self._last = now - seconds - self._verified_at, now, None
        if drafter is not None and last is not None:
            num_rows, num_drafts, took = last
            took += between if took and 0 < between < _LONGEST_GAP_S else 0.0
            self._ask(lambda: drafter.record_step(num_rows, num_drafts, took))

    def _ask(self, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except Exception as error:
            logger.error("drafts are switched off: the drafter has failed", exc_info=error)
            self._drafter = None
            return None
