"""What ranks compare before each step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stoker.engine.api import SamplingParams
from stoker.engine.core.step_plan import Admission, StepPlan
from stoker.engine.launched.plan_hashes import difference, operation_of
from stoker.engine.rank_link import Operation


def column(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


BEGUN = Admission(1, [5, 6, 7], 3, [[2]], SamplingParams(temperature=0), seed=9)
PLAN = StepPlan(
    step=4,
    released_slots=[2],
    admissions=[BEGUN],
    block_slots=column(0),
    block_ids=column(3).reshape(1, 1),
    slots=column(0, 1),
    num_computed=column(8, 0),
    num_tokens=column(1, 3),
    is_sampled=np.array([True, True]),
    forced=[(0, [11])],
)


def test_equal_plans_do_not_differ():
    again = replace(PLAN, admissions=[replace(BEGUN, token_ids=[5, 6, 7], request_id="another")])
    assert difference(operation_of(PLAN), operation_of(again)) == ""


@pytest.mark.parametrize(
    ("other", "part"),
    [
        (replace(PLAN, admissions=[replace(BEGUN, token_ids=[5, 6, 8])]), "prompts of the sequences that begin"),
        (replace(PLAN, admissions=[]), "prompts of the sequences that begin"),
        (replace(PLAN, admissions=[replace(BEGUN, seed=8)]), "sampling parameters of the sequences that begin"),
        (replace(PLAN, released_slots=[]), "sequences that end"),
        (replace(PLAN, slots=column(0, 2)), "sequences that compute"),
        (replace(PLAN, num_tokens=column(1, 2)), "tokens to compute"),
        (replace(PLAN, is_sampled=np.array([True, False])), "tokens to compute"),
        (replace(PLAN, forced=[(0, [12])]), "forced tokens"),
        (replace(PLAN, block_ids=column(4).reshape(1, 1)), "KV blocks"),
        (replace(PLAN, admissions=[replace(BEGUN, block_ids=[[1]])]), "KV blocks"),
        (replace(PLAN, kept_states=column(0, 1).reshape(1, 2)), "recurrent states"),
    ],
)
def test_the_first_part_that_differs_is_named(other: StepPlan, part: str):
    assert difference(operation_of(other), operation_of(PLAN)).startswith(f"{part} differ in step 4: ")


def test_another_operation_differs():
    text = difference(operation_of(PLAN), Operation("a call of `norm`"))
    assert text == "it begins step 4, and rank 0 a call of `norm`"
