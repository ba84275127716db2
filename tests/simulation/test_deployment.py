"""Seeded runs of whole deployments whose engines and ranks fail: deployment.py says how."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.slow_cases import slow

from .deployed_worlds import DeployedWorld, run_deployed_story
from .shrink import report
from .worlds import Broken

FEW, MANY = range(4), range(4, 20)
FAULTS = ["FailStep", "Kill", "LoseRank", "StallRank", "Stall"]


def run(numbers: range, num_steps: int) -> Counter[str]:
    events: Counter[str] = Counter()
    for number in numbers:
        try:
            events += run_deployed_story(
                DeployedWorld.of(f"tests {number}", is_kept_up=number % 2 == 0), num_steps
            ).events
        except Broken as broken:
            pytest.fail(report(broken))
    return events


@pytest.mark.parametrize("numbers", [FEW, slow(MANY)], ids=str)
def test_each_request_ends_once_where_engines_and_ranks_end(numbers: range) -> None:
    events = run(numbers, 100)
    expected = ["ended by length", "ended by leaving", "ended by the end of an engine", "engines that ended"]
    if numbers == MANY:
        expected += [f"faults: {fault}" for fault in FAULTS]
    assert {event for event in expected if not events[event]} == set()
    assert events["engines"] > len(numbers)
