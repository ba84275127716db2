"""The parts of a step."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.runner.step_part import tokens_of
from stoker.engine.step.plan import plan_without_rows


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=9), st.data())
def test_parts_compute_each_token_once_and_in_order(rows: list[tuple[int, int, int]], data: st.DataObject):
    computed, counts, outputs = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    plan = replace(
        plan_without_rows(),
        slots=np.arange(len(rows), dtype=np.int32)[::-1],
        num_computed=computed,
        num_tokens=counts,
        num_outputs=np.minimum(outputs, counts),
    )

    def tokens(of, *, are_outputs: bool = False) -> list[tuple[int, int]]:
        skipped = of.num_tokens - of.num_outputs if are_outputs else np.zeros_like(of.slots)
        return [
            (slot, first + index)
            for slot, first, skip, count in zip(of.slots, of.num_computed, skipped, of.num_tokens, strict=True)
            for index in range(skip, count)
        ]

    total = plan.num_batched_tokens
    cuts = sorted(data.draw(st.sets(st.integers(1, total - 1), max_size=3))) if total > 1 else []
    parts = [tokens_of(plan, range(start, end)) for start, end in zip([0, *cuts], [*cuts, total], strict=True)]
    assert list(chain.from_iterable(map(tokens, parts))) == tokens(plan)
    assert all(part.num_rows and part.num_tokens.min() > 0 for part in parts)
    assert list(chain.from_iterable(tokens(part, are_outputs=True) for part in parts)) == tokens(plan, are_outputs=True)
    dtypes = {each.dtype for part in parts for each in (part.num_tokens, part.num_computed, part.num_outputs)}
    assert dtypes == {np.dtype(np.int32)}


def test_the_whole_is_a_part():
    plan = replace(
        plan_without_rows(),
        slots=np.array([3, 1], np.int32),
        num_computed=np.array([0, 7], np.int32),
        num_tokens=np.array([2, 1], np.int32),
        num_outputs=np.array([1, 0], np.int32),
    )
    whole = tokens_of(plan, range(3))
    for name in ("slots", "num_computed", "num_tokens", "num_outputs"):
        assert getattr(whole, name) == pytest.approx(getattr(plan, name))
