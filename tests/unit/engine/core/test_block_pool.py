from stoker.engine.core.block_pool import BlockPool
from stoker.engine.core.prefix_cache import PrefixCache


def pool_of(num_blocks: int) -> tuple[BlockPool, PrefixCache]:
    cache = PrefixCache()
    return BlockPool(num_blocks, cache), cache


def test_every_block_is_allocated_once():
    pool, _ = pool_of(3)
    assert sorted(pool.allocate(1) + pool.allocate(2)) == [0, 1, 2]
    assert pool.num_free == 0


def test_a_block_is_free_when_its_last_holder_releases_it():
    pool, cache = pool_of(1)
    blocks = pool.allocate(1)
    cache.publish(b"a", 0)
    pool.hold(blocks)
    pool.release(blocks)
    assert (pool.num_free, pool.ref_count(0)) == (0, 1)
    pool.release(blocks)
    assert (pool.num_free, pool.ref_count(0)) == (1, 0)


def test_a_cached_block_can_be_held_again_while_it_is_free():
    pool, cache = pool_of(2)
    blocks = pool.allocate(1)
    cache.publish(b"a", blocks[0])
    pool.release(blocks)
    assert pool.num_free_among(blocks) == 1
    pool.hold(blocks)
    assert pool.num_free == 1
    assert pool.num_free_among(blocks) == 0
    assert pool.allocate(1) != blocks


def test_blank_blocks_are_allocated_before_cached_ones():
    pool, cache = pool_of(3)
    cached, *others = pool.allocate(3)
    cache.publish(b"a", cached)
    pool.release([cached])
    pool.release(others)
    assert sorted(pool.allocate(2)) == sorted(others)
    assert cached in cache
    assert pool.allocate(1) == [cached]
    assert cached not in cache  # what it holds now is something else


def test_the_tail_of_the_least_recently_used_sequence_is_reused_first():
    pool, cache = pool_of(4)
    old, new = pool.allocate(2), pool.allocate(2)
    for block_id in old + new:
        cache.publish(bytes([block_id]), block_id)
    pool.release(old)
    pool.release(new)
    assert pool.allocate(4) == [old[1], old[0], new[1], new[0]]


def test_holding_a_cached_block_makes_it_the_most_recently_used():
    pool, cache = pool_of(2)
    first, second = pool.allocate(1), pool.allocate(1)
    cache.publish(b"first", first[0])
    cache.publish(b"second", second[0])
    pool.release(first)
    pool.release(second)
    pool.hold(first)
    pool.release(first)
    assert pool.allocate(1) == second


def test_forgotten_blocks_are_free_and_blank():
    pool, cache = pool_of(2)
    held, free = pool.allocate(2)
    cache.publish(b"held", held)
    cache.publish(b"free", free)
    pool.release([free])
    pool.forget_all()
    assert len(cache) == 0
    assert pool.allocate(1) == [free]
    pool.release([held])
    assert pool.num_free == 1
