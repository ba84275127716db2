from __future__ import annotations

import numpy as np
import pytest
from tests.unit.engine.runner.plans import make_plan

from stoker.engine.core.block_pool import BlockPool
from stoker.engine.core.prefix_cache import PrefixCache
from stoker.engine.core.steps_in_flight import StepInFlight, StepsInFlight


def flight(steps: StepsInFlight) -> StepInFlight:
    made = StepInFlight(make_plan(step=steps.num_planned), [], np.empty(0, np.int64))
    steps.add(made)
    return made


def test_blocks_are_released_when_the_last_step_that_writes_them_is_finished():
    pool = BlockPool(8, PrefixCache())
    steps = StepsInFlight(pool)
    first, second = flight(steps), flight(steps)
    one, two = pool.allocate(3), pool.allocate(2)
    steps.release(one, last_step=1)
    steps.release(two, last_step=0)
    assert (pool.num_free, steps.holds_tables) == (3, True)
    assert steps.retire(first.plan) is first
    assert (pool.num_free, steps.holds_tables, steps.last_finished) == (5, True, 0)
    steps.retire(second.plan)
    assert (pool.num_free, steps.holds_tables, len(steps)) == (8, False, 0)


def test_blocks_without_an_unfinished_step_are_released_immediately():
    pool = BlockPool(8, PrefixCache())
    steps = StepsInFlight(pool)
    steps.retire(flight(steps).plan)
    steps.release(pool.allocate(3), last_step=0)
    assert (pool.num_free, steps.holds_tables) == (8, False)


def test_steps_are_retired_in_order():
    steps = StepsInFlight(BlockPool(1, PrefixCache()))
    first, second = flight(steps), flight(steps)
    with pytest.raises(RuntimeError, match="step 1 is not the oldest one in flight"):
        steps.retire(second.plan)
    steps.retire(first.plan)
    steps.retire(second.plan)
    with pytest.raises(RuntimeError, match="step 1 is not the oldest one in flight"):
        steps.retire(second.plan)
