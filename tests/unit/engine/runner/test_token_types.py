from __future__ import annotations

import pytest
import torch

from stoker.engine.api import PoolingParams, RequestInputs
from stoker.engine.runner.slot_columns import SECOND_TEXT
from stoker.engine.runner.token_types import token_types
from stoker.engine.step.plan import Admission

from .plans import admission, ids, make_plan, make_table
from .test_earlier_ids import step_of


def test_tokens_of_the_second_text_have_another_type():
    """Slot 2 has a pair, slot 0 continues a pair after its first text, and slot 1 has one text."""
    second = torch.tensor([3, 2**31 - 1, 1])
    found = token_types(step_of([(2, 0, 3), (0, 2, 3), (1, 0, 2)]), second)
    assert found.tolist() == [0, 1, 1, 0, 1, 1, 0, 0]
    assert token_types(step_of([(0, 3, 1), (-1, 0, 1)]), second)[0] == 1


@pytest.mark.parametrize(("task", "begins"), [(PoolingParams(("embed",), second=2), 2), (None, 2**31 - 1)])
def test_a_slot_says_where_the_second_text_begins(task: PoolingParams | None, begins: int):
    table = make_table()
    table.apply(make_plan(admissions=[Admission(0, RequestInputs([4, 5, 6], PoolingParams((), second=1)), [[0]], 0)]))
    new = admission(0, [4, 5, 6], [0]) if task is None else Admission(0, RequestInputs([4, 5, 6], task), [[0]], seed=0)
    table.apply(make_plan(released_slots=[0], admissions=[new], slots=ids(0), num_tokens=ids(3)))
    assert table.columns[SECOND_TEXT][0] == begins
    assert table.pooled == ({} if task is None else {0: task})
