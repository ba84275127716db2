"""Small plans and tables for the tests of this folder."""

from __future__ import annotations

import numpy as np

from stoker.engine.api import RequestInputs, SamplingParams
from stoker.engine.runner.slot_table import SlotTable
from stoker.engine.sampling.sampling_table import SamplingTable
from stoker.engine.step.plan import Admission, Int32, StepPlan


def ids(*values: int) -> Int32:
    return np.array(values, np.int32)


def block_rows(*groups: list[int]) -> Int32:
    """`block_ids` of a plan: [n, groups] from the blocks of each group."""
    return np.array(groups, np.int32).reshape(len(groups), -1).T


def make_plan(**changes: object) -> StepPlan:
    """A plan of one row in slot 0, with the given fields replaced."""
    columns: dict[str, object] = {
        "step": 0,
        "released_slots": [],
        "admissions": [],
        "block_slots": ids(),
        "block_ids": block_rows([]),
        "slots": ids(0),
        "num_computed": ids(0),
        "num_tokens": ids(1),
        "num_outputs": np.array([1], np.int32),
    }
    return StepPlan(**{**columns, **changes})  # type: ignore[arg-type]


def make_table(
    num_slots: int = 4,
    max_model_len: int = 12,
    block_size: int = 4,
    num_groups: int = 1,
    whole_tasks: frozenset[str] = frozenset(),
    first_tasks: frozenset[str] = frozenset(),
) -> SlotTable:
    sampling = SamplingTable(num_slots, 50, (2,))
    tasks = {"whole_tasks": whole_tasks, "first_tasks": first_tasks}
    return SlotTable(num_slots, max_model_len, block_size, sampling, num_groups, **tasks)


def admission(slot: int, token_ids: list[int], block_ids: list[int], **params: object) -> Admission:
    """Of a model with one group of layers."""
    return Admission(slot, RequestInputs(token_ids, SamplingParams(**params)), [block_ids], seed=slot)  # type: ignore[arg-type]
