from stoker.engine.core.prefix_cache import PrefixCache


def test_find_stops_at_the_first_missing_block():
    cache = PrefixCache()
    names = [b"a", b"b", b"c", b"d"]
    for index in (0, 1, 3):
        cache.publish(names[index], 10 + index)
    assert cache.find(names, 0, 4) == [10, 11]
    assert cache.find(names, 0, 1) == [10]
    assert cache.find(names, 1, 4) == [11]
    assert cache.find(names, 3, 4) == [13]
    assert cache.find(names, 2, 4) == []


def test_the_first_block_published_with_a_hash_keeps_it():
    cache = PrefixCache()
    cache.publish(b"x", 1)
    cache.publish(b"x", 2)
    assert cache.find([b"x"], 0, 1) == [1]
    assert 2 not in cache
    cache.forget(1)
    assert cache.find([b"x"], 0, 1) == []
    assert len(cache) == 0
