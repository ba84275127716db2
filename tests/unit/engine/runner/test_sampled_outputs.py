"""Which tokens of a step are valid, sampled by one process or received from another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stoker.engine.api import TokenLogprobs
from stoker.engine.ranks.following_sampler import FollowingSampler
from stoker.engine.ranks.leading_sampler import LeadingSampler
from stoker.engine.runner.sampled_outputs import SampledOutputs
from stoker.engine.runner.step_input import logit_tokens
from stoker.engine.sampling.sampler import Sampled
from stoker.engine.step.result import StepResult
from stoker.engine.transport.rank_messages import Tokens

from .plans import admission, ids, make_plan, make_table

PROMPTS = [[5, 6, 7], [8, 9]]


class Step:
    """Slot 0 has three known tokens, slot 1 two; each has drafts."""

    def __init__(self, *drafts: list[int], needs_order: bool = False) -> None:
        self.table = make_table()
        admitted = [admission(slot, prompt, [slot]) for slot, prompt in enumerate(PROMPTS)]
        self.table.apply(make_plan(admissions=admitted))
        counts = ids(*(1 + len(each) for each in drafts))
        self.plan = make_plan(
            slots=ids(0, 1), num_computed=ids(2, 1), num_tokens=counts, num_outputs=counts,
            drafts=[(slot, each) for slot, each in enumerate(drafts) if each],
        )  # fmt: skip
        self.table.apply(self.plan)
        self.taken = SampledOutputs(self.plan, logit_tokens(self.plan, self.table), self.table)
        self.needs_order = np.full(len(self.taken.slots), needs_order)
        self.parts: list[list[int]] = []

    def sample(self, found: Any, max_rows: int = 128) -> StepResult:
        """found: makes what is sampled of a part."""
        for part in self.taken.parts(max_rows, self.needs_order):
            self.parts.append(part.tolist())
            self.taken.take(part, found(part))
        return self.taken.result()

    def sequences(self) -> list[list[int]]:
        table = self.table
        return [table.token_ids[slot, : table.num_tokens[slot]].tolist() for slot in range(2)]


def tokens(*token_ids: int, **changes: Any) -> Any:
    """What is sampled for the outputs of the step, in their order."""

    def found(part: np.ndarray) -> Sampled:
        own = {name: by_output for name, by_output in changes.items() if name != "complete"}
        at = {int(index): row for row, index in enumerate(part.tolist())}
        kept = {name: {at[key]: value for key, value in each.items() if key in at} for name, each in own.items()}
        complete = [at[key] for key in changes.get("complete", []) if key in at]
        return Sampled(np.array(token_ids, np.int32)[part], kept.pop("logprobs", {}), complete=complete, **kept)

    return found


def valid(result: StepResult) -> list[int] | None:
    return None if result.num_valid is None else result.num_valid.tolist()


@pytest.mark.parametrize("needs_order", [False, True])
@pytest.mark.parametrize(
    ("sampled", "expected", "counts"),
    [
        ((10, 11, 12, 20, 21), [10, 11, 12, 20, 21], [3, 2]),  # all drafts are right, and one more token follows
        ((10, 99, 12, 20, 21), [10, 99, 20, 21], [2, 2]),
        ((99, 11, 12, 99, 21), [99, 99], [1, 1]),  # what follows a wrong draft is right by chance
    ],
)
def test_drafts_are_valid_up_to_the_first_that_is_not_sampled(
    sampled: tuple[int, ...], expected: list[int], counts: list[int], needs_order: bool
):
    step = Step([10, 11], [20], needs_order=needs_order)
    result = step.sample(tokens(*sampled))
    assert result.token_ids.tolist() == expected
    assert valid(result) == counts
    assert step.sequences() == [PROMPTS[0] + expected[: counts[0]], PROMPTS[1] + expected[counts[0] :]]


def test_what_is_kept_of_tokens_is_sampled_in_their_order():
    step = Step([10, 11], [20], needs_order=True)
    step.sample(tokens(10, 11, 12, 99, 21))
    assert step.parts == [[0, 3], [1], [2]]
    step = Step([10, 11], [20])
    step.sample(tokens(10, 11, 12, 99, 21), max_rows=2)
    assert step.parts == [[0, 1], [2, 3], [4]]


def test_a_step_without_drafts_has_a_token_for_each_row():
    step = Step([], [])
    result = step.sample(tokens(10, 20))
    assert (result.token_ids.tolist(), valid(result)) == ([10, 20], None)


@pytest.mark.parametrize("needs_order", [False, True])
def test_log_probabilities_are_those_of_valid_tokens(needs_order: bool):
    entries = {output: TokenLogprobs([output], [-1.0], 1) for output in range(5)}
    result = Step([10, 11], [20], needs_order=needs_order).sample(tokens(10, 99, 12, 20, 21, logprobs=entries))
    assert {place: entry.token_ids for place, entry in result.logprobs.items()} == {0: [0], 1: [1], 2: [3], 3: [4]}


def test_nothing_follows_a_token_that_completes_a_grammar_and_what_must_follow_the_last_one():
    step = Step([10, 11], [20], needs_order=True)
    result = step.sample(tokens(10, 11, 12, 20, 21, complete=[1], forced={0: [1], 3: [2], 4: [3]}))
    assert (result.token_ids.tolist(), valid(result)) == ([10, 11, 20, 21], [2, 2])
    assert (result.complete, result.forced) == ([0], {1: [3]})


@pytest.mark.parametrize("needs_order", [False, True])
def test_a_token_that_fails_after_a_draft_fails_when_those_before_are_sent(needs_order: bool):
    step = Step([10, 11], [20], needs_order=needs_order)
    result = step.sample(tokens(10, 0, 12, 0, 21, errors={1: "late", 3: "first"}))
    assert (result.token_ids.tolist(), valid(result)) == ([10, 0], [1, 1])
    assert result.errors == {1: "first"}
    assert step.sequences()[0] == [*PROMPTS[0], 10]


def test_all_ranks_have_the_same_tokens_where_a_row_fails():
    """Tokens were sent without errors: another rank went on with the token 0 of the row that had failed."""
    sent: list[Tokens] = []

    class Others:
        def hold(self, tokens: Tokens) -> None:
            sent.append(tokens)

        def receive(self) -> Tokens:
            return sent.pop(0)

    class Own:
        def __init__(self, found: Sampled) -> None:
            self.found, self.prompt_logprobs = found, None

        def sample(self, *_: Any) -> Sampled:
            return self.found

    leading, following = Step([10, 0], [20]), Step([10, 0], [20])
    own: Any = Own(tokens(10, 0, 12, 20, 21, errors={1: "NaN"})(np.arange(5)))
    others: Any = Others()
    leader, follower = LeadingSampler(own, others), FollowingSampler(others)
    nothing: Any = torch.empty(0)
    arguments = nothing, leading.taken.slots, leading.taken.lengths, leading.table.token_ids
    results = [
        step.sample(lambda _, sampler=sampler: sampler.sample(*arguments))
        for step, sampler in ((leading, leader), (following, follower))
    ]
    assert valid(results[0]) == valid(results[1]) == [1, 2]
    assert leading.sequences() == following.sequences()
    assert results[0].token_ids.tolist() == results[1].token_ids.tolist()
