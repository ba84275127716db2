"""StepPlan: one decision of the scheduler, in columns; and StepResult: its result.

The runner keeps a table per slot (token ids, lengths, block table, sampling parameters). A plan carries only what
changed: released slots, admissions, new blocks, and one row per sequence that computes tokens in this step. A decode
row's input is the token the runner itself sampled last, so a plan never waits for tokens: step n+1 can be planned and
queued before the tokens of step n are known, and replayed as a graph.

Guarantees to the runner, and its obligations:
- Plans are executed in order, each one exactly once. Each layer writes the keys and values of all tokens of a step
  before any later row attends, because a row may read blocks that a row before it fills in the same step.
- A row's blocks cover num_computed + num_tokens tokens after the plan's changes; those of a group with a window cover
  the tokens that the row's tokens see, and older entries of the runner's table may be blocks of other sequences by now.
  num_computed counts tokens in the cache, from this sequence or others with the same prefix: it may be more than this
  slot has computed.
- A row that is sampled computes the last known token; the sampled token is appended to the slot's tokens. A sequence
  that has ended may still have a row in a plan that was already queued; its token is dropped.
- Tokens that a result has announced as forced may be appended to a slot instead of being sampled one by one; then no
  step with a row for this slot is in flight.
- Of models with recurrent layers: a row without computed tokens begins with an empty state, another continues the one
  of its slot. States are copied between places: those of the slots, and after these the places of kept states.
- After a step that failed, the next plan may release slots that the runner has never filled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..api import SamplingParams, TokenLogprobs
from .block_store import BlockCopy, BlockLoad

Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]
NO_COPIES: Int32 = np.empty((0, 2), np.int32)


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence that takes a slot: new, or resumed after preemption (then its sampled tokens follow the prompt)."""

    slot: int
    token_ids: list[int]  # prompt, and tokens sampled before a preemption
    num_prompt_tokens: int
    block_ids: list[list[int]]  # by group of layers: all blocks so far, cached prefix first; NO_BLOCK before a window
    sampling: SamplingParams
    seed: int  # the request's, or 63 random bits chosen by the scheduler
    request_id: str = ""  # for the times of requests; not used by the runner


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All arrays have one entry per row; rows are in batch order."""

    step: int
    released_slots: list[int]  # first: release these
    admissions: list[Admission]  # then: fill these
    block_slots: Int32  # then: append block_ids[i, g] to the block table of block_slots[i] and group g of layers
    block_ids: Int32  # NO_BLOCK where the group needs none, because its window does not reach back to it
    slots: Int32  # [rows]
    num_computed: Int32  # [rows] tokens whose keys and values are in the cache before the step
    num_tokens: Int32  # [rows] tokens to compute in this step
    is_sampled: Bool  # [rows] the row reaches the last known token, so one more is sampled
    restored_states: Int32 = field(default_factory=lambda: NO_COPIES)  # [n, 2] copy state from place to place before
    kept_states: Int32 = field(default_factory=lambda: NO_COPIES)  # [n, 2] and after the step
    loads: list[BlockLoad] = field(default_factory=list)  # stored blocks, copied to the cache before the step
    saves: list[BlockCopy] = field(default_factory=list)  # blocks that are stored after it
    forced: list[tuple[int, list[int]]] = field(default_factory=list)  # after admissions: append tokens to slots

    @property
    def num_rows(self) -> int:
        return len(self.slots)

    @property
    def num_batched_tokens(self) -> int:
        return int(self.num_tokens.sum())


def plan_without_rows() -> StepPlan:
    """Of a step that computes nothing for sequences of this engine."""
    none: Int32 = np.empty(0, np.int32)
    return StepPlan(-1, [], [], none, np.empty((0, 1), np.int32), none, none, none, np.empty(0, np.bool_))


@dataclass(slots=True)
class StepResult:
    """What the runner sampled."""

    token_ids: Int32  # [rows], -1 where the row was not sampled
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # row -> of the sampled token
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    # row -> for the prompt tokens at positions num_computed + 1 ... of this step's chunk
    errors: dict[int, str] = field(default_factory=dict)  # row -> why its request cannot continue; the others can
    complete: list[int] = field(default_factory=list)  # rows whose grammar allows nothing after the sampled token
    forced: dict[int, list[int]] = field(default_factory=dict)  # row -> tokens that must follow the sampled one; they
    # would be sampled one by one, unless a plan appends them
