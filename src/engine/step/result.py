"""StepResult: what a step has computed. StepOutputs: what its requests get of it.

In steady decode nearly every sequence gets one token and nothing else; these tokens stay in columns from the runner to
the client. Outputs with more to say are records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..api import EngineOutput, TokenLogprobs, Vectors
from .plan import Bool, Int32, Int64, StepPlan


@dataclass(slots=True)
class StepResult:
    """The outputs of all rows, one row after the other."""

    token_ids: Int32  # [tokens] sampled
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # index into token_ids -> of that token
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    # row -> for the prompt tokens at positions num_computed + 1 ... of this step's chunk
    errors: dict[int, str] = field(default_factory=dict)  # row -> why its request cannot continue; the others can
    complete: list[int] = field(default_factory=list)  # rows whose grammar allows nothing after the sampled token
    forced: dict[int, list[int]] = field(default_factory=dict)  # row -> tokens that must follow the sampled one; they
    # would be sampled one by one, unless a plan appends them
    # row -> task -> what its head has made of the prompt; the token of such a row is not used
    vectors: dict[int, dict[str, Vectors]] = field(default_factory=dict)
    # [rows] how many of a row's outputs have a token, the first ones; at least one if there are outputs. The others are
    # of rejected drafts, or of another head. None: each row has `num_outputs` tokens (StepPlan), none more than one.
    num_valid: Int32 | None = None
    draft_seconds: float = 0.0  # what the runner took to draft tokens of this step, in addition to the step
    is_of_new_shape: bool = False  # it was captured, or a part of it: its time says nothing of other steps
    undrafted: Sequence[int] = ()  # slots for which the runner had no guesses: their drafts are any tokens
    undraftable: Sequence[int] = ()  # the ones among them for which it will never have any
    draft_error: str = ""  # why the runner drafts nothing any more

    def rows(self, plan: StepPlan) -> Int64:
        """[tokens] The row of each token, ascending."""
        return plan.output_rows if self.num_valid is None else np.arange(plan.num_rows).repeat(self.num_valid)


class HasRequestId(Protocol):
    request_id: str


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """Outputs of a step. Each request occurs at most once: as a plain token, or as a record. Iterating gives all of
    them as records."""

    records: list[EngineOutput] = field(default_factory=list)  # with a finish reason, log-probabilities, a first token
    token_ids: Int32 = field(default_factory=lambda: np.empty(0, np.int32))  # [plain tokens]
    routes: Int64 = field(default_factory=lambda: np.empty(0, np.int64))  # EngineRequest.route of each
    requests: Sequence[HasRequestId] = ()  # by row of the step
    rows: Int64 = field(default_factory=lambda: np.empty(0, np.int64))  # the row of each plain token

    def part(self, chosen: Bool, records: Sequence[EngineOutput] = ()) -> StepOutputs:
        """These of the plain tokens, and these records. chosen: [plain tokens]."""
        return StepOutputs(list(records), self.token_ids[chosen], self.routes[chosen], self.requests, self.rows[chosen])

    def __len__(self) -> int:
        return len(self.token_ids) + len(self.records)

    def __iter__(self) -> Iterator[EngineOutput]:
        for row, token_id in zip(self.rows.tolist(), self.token_ids.tolist(), strict=True):
            yield EngineOutput(request_id=self.requests[row].request_id, token_ids=[token_id])
        yield from self.records
