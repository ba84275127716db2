from stoker.engine.core.prefix_cache import HASH_BYTES, PrefixCache, extend_hashes, root_hash


def hashes_of(token_ids: list[int], num_blocks: int, block_size: int = 2, salt: str = "") -> list[bytes]:
    hashes: list[bytes] = []
    extend_hashes(hashes, root_hash(salt), token_ids, block_size, num_blocks)
    return hashes


def test_equal_prefixes_have_equal_names_up_to_the_first_difference():
    one, other = hashes_of([1, 2, 3, 4, 5, 6], 3), hashes_of([1, 2, 3, 9, 5, 6], 3)
    assert one[0] == other[0]
    assert one[1] != other[1]
    assert one[2] != other[2]  # the same two tokens behind another prefix are another block
    assert {len(name) for name in one} == {HASH_BYTES}


def test_salts_share_no_names():
    names = [name for salt in ("", "a", "b", "\ud800") for name in hashes_of([1, 2, 3, 4], 2, salt=salt)]
    assert len(set(names)) == 8


def test_names_do_not_depend_on_how_they_were_made():
    """One by one, as a sequence grows, or all at once."""
    tokens, grown = list(range(12)), []
    for num_blocks in (0, 1, 1, 3, 4):
        extend_hashes(grown, root_hash(""), tokens, 3, num_blocks)
    assert grown == hashes_of(tokens, 4, block_size=3)
    assert hashes_of(tokens, 1, block_size=4) != hashes_of(tokens, 1, block_size=3)


def test_token_ids_do_not_run_into_each_other():
    assert hashes_of([1, 256], 1) != hashes_of([257, 0], 1)
    assert hashes_of([2**31 - 1, 0], 1) != hashes_of([0, 2**31 - 1], 1)


def test_find_stops_at_the_first_missing_block():
    cache = PrefixCache()
    names = hashes_of(list(range(8)), 4)
    for index in (0, 1, 3):
        cache.publish(names[index], 10 + index)
    assert cache.find(names, 0, 4) == [10, 11]
    assert cache.find(names, 0, 1) == [10]
    assert cache.find(names, 1, 4) == [11]
    assert cache.find(names, 3, 4) == [13]
    assert cache.find(names, 2, 4) == []


def test_the_first_block_under_a_name_keeps_it():
    cache = PrefixCache()
    cache.publish(b"x", 1)
    cache.publish(b"x", 2)
    assert cache.find([b"x"], 0, 1) == [1]
    assert 2 not in cache
    cache.forget(1)
    assert cache.find([b"x"], 0, 1) == []
    assert len(cache) == 0
