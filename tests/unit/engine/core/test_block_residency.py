"""How long blocks are kept, by a clock that the test moves."""

from __future__ import annotations

import pytest

from stoker.engine.core.block_pool import BlockPool
from stoker.engine.core.block_residency import BlockResidency
from stoker.engine.core.prefix_cache import PrefixCache


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_times_of_a_block_that_is_used_twice_and_evicted(clock: Clock):
    cache, residency = PrefixCache(), BlockResidency(1.0, 0, clock)
    pool = BlockPool(1, cache, residency)
    blocks = pool.allocate(1)
    cache.publish(b"a", 0)
    clock.now += 2
    pool.release(blocks)
    clock.now += 3
    pool.hold(blocks)
    clock.now += 4
    pool.hold(blocks)  # another sequence: nothing waited
    pool.release(blocks)
    pool.release(blocks)
    clock.now += 5
    assert residency.lifetimes.distribution.count == 0
    pool.allocate(1)
    gaps, idle, lives = (
        each.distribution for each in (residency.reuse_gaps, residency.idle_times, residency.lifetimes)
    )
    assert (gaps.count, gaps.total) == (1, 3)
    assert (idle.count, idle.total) == (1, 5)
    assert (lives.count, lives.total) == (1, 14)
    assert dict(lives.buckets)[10.0] == 0
    assert dict(lives.buckets)[20.0] == 1


def test_a_block_that_was_never_cached_is_no_eviction(clock: Clock):
    residency = BlockResidency(1.0, 0, clock)
    pool = BlockPool(1, PrefixCache(), residency)
    for _ in range(3):
        pool.release(pool.allocate(1))
    assert residency.lifetimes.distribution.count == 0


def test_all_blocks_are_evicted_when_the_cache_is_given_up(clock: Clock):
    cache, residency = PrefixCache(), BlockResidency(1.0, 0, clock)
    pool = BlockPool(2, cache, residency)
    held, free = pool.allocate(2)
    cache.publish(b"a", held)
    cache.publish(b"b", free)
    pool.release([free])
    clock.now += 1
    pool.forget_all()
    assert residency.idle_times.distribution.total == 1
    assert residency.lifetimes.distribution.count == 1


def test_a_share_of_the_allocations_is_measured(clock: Clock):
    cache, residency = PrefixCache(), BlockResidency(0.25, 0, clock)
    pool = BlockPool(1, cache, residency)
    for number in range(400):
        blocks = pool.allocate(1)
        cache.publish(b"%d" % number, blocks[0])
        pool.release(blocks)
    assert 70 < residency.lifetimes.distribution.count < 130
