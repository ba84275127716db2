"""Seeded runs of the scheduler with stores of blocks that fail: stores.py says how."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.slow_cases import slow

from .shrink import report
from .stores import FILE_FAULTS
from .worlds import Broken, World, run_story

FEW, MANY = range(4), range(4, 20)


def run(numbers: range, num_steps: int, *, fails: bool = True) -> Counter[str]:
    events: Counter[str] = Counter()
    for number in numbers:
        try:
            events += run_story(World.with_stores(f"stores {number}", fails=fails), num_steps).events
        except Broken as broken:
            pytest.fail(report(broken))
    return events


@pytest.mark.parametrize("numbers", [FEW, slow(MANY)], ids=str)
def test_stored_prefixes_are_right_and_no_request_is_lost_where_stores_fail(numbers: range) -> None:
    events = run(numbers, 150)
    expected = ["tokens read from stores", "blocks for others", "aborts"]
    if numbers == MANY:
        expected += ["held outputs", *(f"stores: {fault}" for fault in FILE_FAULTS)]
    assert {event for event in expected if not events[event]} == set()
