"""The parts of a step."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.core.step_plan import plan_without_rows
from stoker.engine.runner.step_part import tokens_of


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9), st.booleans()), min_size=1, max_size=9), st.data())
def test_parts_compute_each_token_once_and_in_order(rows: list[tuple[int, int, bool]], data: st.DataObject):
    computed, counts, sampled = (np.array(column) for column in zip(*rows, strict=True))
    plan = replace(
        plan_without_rows(),
        slots=np.arange(len(rows), dtype=np.int32)[::-1],
        num_computed=computed.astype(np.int32),
        num_tokens=counts.astype(np.int32),
        is_sampled=sampled,
    )

    def tokens(of) -> list[tuple[int, int]]:
        return [
            (slot, first + index)
            for slot, first, count in zip(of.slots, of.num_computed, of.num_tokens, strict=True)
            for index in range(count)
        ]

    total = plan.num_batched_tokens
    cuts = sorted(data.draw(st.sets(st.integers(1, total - 1), max_size=3))) if total > 1 else []
    parts = [tokens_of(plan, range(start, end)) for start, end in zip([0, *cuts], [*cuts, total], strict=True)]
    assert list(chain.from_iterable(map(tokens, parts))) == tokens(plan)
    assert all(part.num_rows and part.num_tokens.min() > 0 for part in parts)
    ends = chain.from_iterable(part.slots[part.is_sampled] for part in parts)
    assert list(ends) == plan.slots[sampled].tolist()
    assert all(part.num_tokens.dtype == part.num_computed.dtype == np.int32 for part in parts)


def test_the_whole_is_a_part():
    plan = replace(
        plan_without_rows(),
        slots=np.array([3, 1], np.int32),
        num_computed=np.array([0, 7], np.int32),
        num_tokens=np.array([2, 1], np.int32),
        is_sampled=np.array([True, False]),
    )
    whole = tokens_of(plan, range(3))
    for name in ("slots", "num_computed", "num_tokens", "is_sampled"):
        assert getattr(whole, name) == pytest.approx(getattr(plan, name))
