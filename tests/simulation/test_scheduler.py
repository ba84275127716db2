"""Seeded runs of the whole scheduler in small worlds: pools that are too small, queues that fill, clients that leave.

About 100 000 steps in all; `python -m tests.simulation.run` goes on for as long as is wished. A world is told by its
name, so a failure is run again by naming its test.
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from .shrink import told
from .worlds import Broken, World, live_through

STEPS_PER_WORLD = 420
WORLDS_PER_MODE = 15

MODES = list(product(["fcfs", "priority"], [True, False], [True, False], [1, 2]))


@pytest.mark.parametrize(("policy", "prefix_caching", "chunked_prefill", "depth"), MODES)
def test_every_token_is_right_and_all_memory_comes_back(
    policy: str, prefix_caching: bool, chunked_prefill: bool, depth: int
) -> None:
    events: Counter[str] = Counter()
    for number in range(WORLDS_PER_MODE):
        world = World.of(
            f"{policy} {prefix_caching} {chunked_prefill} {depth} {number}",
            depth,
            scheduling_policy=policy,
            enable_prefix_caching=prefix_caching,
            enable_chunked_prefill=chunked_prefill,
        )
        try:
            events += live_through(world, STEPS_PER_WORLD).events
        except Broken as broken:
            pytest.fail(told(broken))
    # the worlds are such that all of it happened
    assert events["steps"] * len(MODES) >= 100_000
    for event in ("preemptions", "refused", "invalid", "aborts", "failed steps", "request errors", "ended by stop"):
        assert events[event] > 0, event
    assert (events["tokens from the cache"] > 0) == prefix_caching
