"""StepPlan: rows with any number of outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stoker.engine.step import plan_without_rows


@pytest.mark.parametrize(
    ("num_outputs", "expected"), [([], []), ([0], []), ([1, 1, 1], [0, 1, 2]), ([0, 3, 1, 0, 2], [1, 1, 1, 2, 4, 4])]
)
def test_a_row_occurs_once_for_each_of_its_outputs(num_outputs: list[int], expected: list[int]):
    plan = replace(plan_without_rows(), slots=np.arange(len(num_outputs)), num_outputs=np.array(num_outputs, np.int32))
    assert plan.output_rows.tolist() == expected
