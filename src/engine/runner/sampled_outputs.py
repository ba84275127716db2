"""SampledOutputs: the tokens of a step's outputs, and how many of each row are valid.

A row with drafts has an output for its last known token, and one for each draft. Each is sampled as if the drafts
before it were known: noise depends on the seed and the position, so a token that is valid is the one that would have
been sampled without drafts. It is valid if all drafts before it are what was sampled in their places.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..api import TokenLogprobs
from ..sampling.sampler import Sampled
from ..step.plan import Bool, Int32, StepPlan
from ..step.result import StepResult
from .slot_table import SlotTable
from .step_input import Int64, LogitTokens


class SampledOutputs:
    """The outputs that are sampled, row after row: arrays have one entry for each."""

    def __init__(self, plan: StepPlan, wanted: LogitTokens, slots: SlotTable) -> None:
        """The plan must have been applied to `slots`."""
        self._plan, self._table = plan, slots
        self.outputs = wanted.sampled  # indices into those of the step
        self._rows = wanted.output_rows[self.outputs]
        first = np.cumsum(plan.num_outputs) - plan.num_outputs
        self._num_before = self.outputs - first[self._rows]  # drafts of the row before the token
        self.slots = plan.slots[self._rows]
        self.lengths: Int64 = slots.num_tokens[self.slots] + self._num_before  # known tokens, with those drafts
        self._token_ids: Int32 = np.zeros(len(self.outputs), np.int32)
        self._is_valid = self._num_before == 0
        self._has_ended = np.zeros(len(self.outputs), bool)  # nothing can follow the token
        self._logprobs: dict[int, TokenLogprobs] = {}
        self._errors: dict[int, str] = {}
        self._forced: dict[int, list[int]] = {}

    def parts(self, max_rows: int, needs_order: npt.NDArray[np.bool_]) -> Iterator[Int64]:
        """What to sample, at most `max_rows` at a time. The tokens of a part must be taken before the next one.

        needs_order: [outputs] whether a token can only be sampled when the one before it is, because the sampler counts
            it or a grammar takes it.
        """
        yield from _divided(np.flatnonzero(self._is_valid | ~needs_order), max_rows)
        for num_before in range(1, int(self._num_before.max(initial=0)) + 1):
            here = np.flatnonzero(self._num_before == num_before)
            before = here - 1
            drafts = self._table.token_ids[self.slots[before], self.lengths[before]]
            is_draft = self._token_ids[before] == drafts
            self._is_valid[here] = self._is_valid[before] & is_draft & ~self._has_ended[before]
            yield from _divided(here[self._is_valid[here] & needs_order[here]], max_rows)

    @property
    def has_drafts(self) -> bool:
        return bool(self._num_before.any())

    def would_be_valid(self, part: Int64, token_ids: Int32) -> Bool:
        """[part] Whether each output of a part is valid if these are its tokens, and none of them fails or completes a
        grammar. The parts before it were taken."""
        tokens, after_draft = self._token_ids.copy(), np.flatnonzero(self._num_before)
        tokens[part] = token_ids
        before = after_draft - 1
        is_wrong = np.zeros(len(tokens), np.int64)
        is_wrong[after_draft] = tokens[before] != self._table.token_ids[self.slots[before], self.lengths[before]]
        num_wrong = np.cumsum(is_wrong)
        found: Bool = num_wrong[part] == num_wrong[part - self._num_before[part]]  # none since the first of its row
        return found

    def take(self, part: Int64, sampled: Sampled) -> None:
        """part: of `parts`, with its tokens."""
        self._token_ids[part] = sampled.token_ids
        self._logprobs.update((int(part[index]), found) for index, found in sampled.logprobs.items())
        self._errors.update((int(part[index]), error) for index, error in sampled.errors.items())
        self._forced.update((int(part[index]), run) for index, run in sampled.forced.items())
        self._has_ended[part[sampled.complete]] = True
        self._has_ended[part[list(sampled.errors)]] = True

    def result(self) -> StepResult:
        """Call it after the last part: the slot table gets the tokens. Rows of other heads have a token 0."""
        # A token that fails after a draft is sampled again in the next step, when those before it have been sent.
        late = [index for index in self._errors if self._num_before[index]]
        self._is_valid[late] = False
        valid = np.flatnonzero(self._is_valid)
        counts = np.bincount(self._rows[valid], minlength=self._plan.num_rows)
        last = valid[np.cumsum(counts)[counts > 0] - 1]  # of each row that is sampled
        self._table.append(self.slots[last], self._token_ids[last], self._num_before[last])
        is_plain = len(valid) == int(self._plan.num_outputs.sum()) and counts.max(initial=0) <= 1
        num_valid = np.where(counts > 0, counts, np.minimum(self._plan.num_outputs, 1)).astype(np.int32)
        places = (np.cumsum(num_valid) - num_valid)[self._rows] + self._num_before
        token_ids: Int32 = np.zeros(int(num_valid.sum()), np.int32)
        token_ids[places[valid]] = self._token_ids[valid]
        is_last, rows = set(last.tolist()), self._rows
        return StepResult(
            token_ids,
            {int(places[index]): found for index, found in self._logprobs.items() if self._is_valid[index]},
            errors={int(rows[index]): error for index, error in self._errors.items() if self._is_valid[index]},
            complete=[int(rows[index]) for index in last[self._has_ended[last]] if index not in self._errors],
            forced={int(rows[index]): run for index, run in self._forced.items() if index in is_last},
            num_valid=None if is_plain else num_valid,
        )


def _divided(indices: Int64, most: int) -> Iterator[Int64]:
    for start in range(0, len(indices), most):
        yield indices[start : start + most]
