"""StepPlan: one decision of the scheduler, in columns.

The runner keeps a table per slot (token ids, lengths, block table, sampling parameters). A plan carries only what
changed: released slots, admissions, new blocks, and one row per sequence that computes tokens in this step. A decode
row's input is the token that the runner itself sampled last, so a plan never waits for tokens: step n+1 can be planned
and queued before the tokens of step n are known, and replayed as a graph.

Guarantees to the runner, and its obligations:
- Plans are executed in order, each one exactly once. Each layer writes the keys and values of all tokens of a step
  before any later row attends, because a row may read blocks that a row before it fills in the same step.
- A row's blocks cover num_computed + num_tokens tokens after the plan's changes. The blocks of a group with a window
  cover the tokens that the row's tokens see, and older entries of the runner's table may be blocks of other sequences
  by now. num_computed counts tokens in the cache, from this sequence or others with the same prefix: it may be more
  than this slot has computed.
- The head is applied to the last num_outputs tokens of a row. A row with an output computes its last known token, and
  the token sampled from it is appended to the slot's tokens. The tokens of further outputs are drafts, of which the
  result says how many are valid; no other step with a row for this slot is in flight then. What is sampled after a
  draft is valid if all drafts before it are what was sampled in their places. A sequence that has ended may still have
  a row in a plan that was already queued; its token is dropped.
- Nothing is sampled for a request that is pooled. Its prompt is the input of heads in the step with the row's output;
  the result has their vectors, and a token 0 that is not used. A head that needs the hidden states of all tokens gets
  them in that step: the row begins with the first token.
- Tokens that a result has announced as forced may be appended to a slot instead of being sampled one by one; then no
  step with a row for this slot is in flight.
- In models with recurrent layers, a row without computed tokens begins with an empty state, and any other row continues
  the state of its slot. States are copied between places: the places of the slots come first, and after them the places
  of kept states.
- After a step that failed, the next plan may release slots that the runner has never filled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..api import AdapterRef, RequestInputs

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Table = np.ndarray[tuple[int, int], np.dtype[np.int32]]
NO_COPIES: Table = np.empty((0, 2), np.int32)
NO_ADAPTER = -1


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence that takes a slot: new, or resumed after preemption (then its sampled tokens follow the prompt)."""

    slot: int
    inputs: RequestInputs
    block_ids: list[list[int]]  # by group of layers: all blocks so far, cached prefix first; NO_BLOCK before a window
    seed: int  # the request's, or 63 random bits chosen by the scheduler
    generated: list[int] = field(default_factory=list)  # tokens sampled before a preemption
    request_id: str = ""  # for the times of requests; not used by the runner
    adapter_slot: int = NO_ADAPTER  # of the adapter in `inputs`

    @property
    def token_ids(self) -> list[int]:
        """All known tokens, in a new list."""
        return self.inputs.prompt_token_ids + self.generated

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.inputs.prompt_token_ids)


@dataclass(frozen=True, slots=True)
class AdapterLoad:
    """Place an adapter in a slot of adapters. No row of this step or a later one has what was there before."""

    slot: int
    ref: AdapterRef


@dataclass(frozen=True, slots=True)
class BlockLoad:
    """Copy a stored block to the KV cache."""

    block_ids: tuple[int, ...]  # in each group of layers
    content: memoryview


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy a block of the KV cache to the store."""

    block_hash: bytes
    block_ids: tuple[int, ...]  # in each group of layers
    is_for_others: bool = False


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All arrays have one entry per row; rows are in batch order."""

    step: int
    released_slots: list[int]  # first: release these
    admissions: list[Admission]  # then: fill these
    block_slots: Int32  # then: append block_ids[i, g] to the block table of block_slots[i] and group g of layers
    block_ids: Table  # NO_BLOCK where the group needs none, because its window does not reach back to it
    slots: Int32  # [rows]
    num_computed: Int32  # [rows] tokens whose keys and values are in the cache before the step
    num_tokens: Int32  # [rows] tokens to compute in this step
    num_outputs: Int32  # [rows] how many of these, the last ones, the head is applied to; 0: a chunk of a prompt
    restored_states: Table = field(default_factory=lambda: NO_COPIES)  # [n, 2] copy state from place to place before
    kept_states: Table = field(default_factory=lambda: NO_COPIES)  # [n, 2] and after the step
    loads: list[BlockLoad] = field(default_factory=list)  # stored blocks, copied to the cache before the step
    saves: list[BlockCopy] = field(default_factory=list)  # blocks that are stored after it
    adapter_loads: list[AdapterLoad] = field(default_factory=list)  # before the step
    forced: list[tuple[int, list[int]]] = field(default_factory=list)  # after admissions: append tokens to slots
    # Slots, and what may follow the last known token of each: one token less than its row has outputs.
    drafts: list[tuple[int, list[int]]] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        return len(self.slots)

    @property
    def num_batched_tokens(self) -> int:
        return int(self.num_tokens.sum())

    @property
    def drafted_rows(self) -> Int64:
        """The rows with drafts, ascending."""
        return np.flatnonzero(self.num_outputs > 1)

    @property
    def awaits_drafts(self) -> bool:
        """Whether some row has drafts that only the runner can make."""
        return len(self.drafted_rows) > len(self.drafts)

    @property
    def output_rows(self) -> Int64:
        """[outputs] The row of each output, ascending: a row with n outputs occurs n times."""
        return np.arange(len(self.slots)).repeat(self.num_outputs)


def plan_without_rows() -> StepPlan:
    """The plan of a step that computes nothing for sequences of this engine."""
    none: Int32 = np.empty(0, np.int32)
    return StepPlan(-1, [], [], none, np.empty((0, 1), np.int32), none, none, none, none)
