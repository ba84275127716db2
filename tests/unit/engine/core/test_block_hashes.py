from __future__ import annotations

import hashlib
import struct

import pytest

from stoker.engine.api import CacheScope, KeyedSpan
from stoker.engine.core.block_hashes import BlockHasher, HashAlgo

ALGORITHMS = ["sha256", "sha256_cbor", "blake2b"]
each_algorithm = pytest.mark.parametrize("algo", ALGORITHMS)


def hashes_of(
    token_ids: list[int],
    num_blocks: int,
    block_size: int = 2,
    salt: str = "",
    algo: HashAlgo = "sha256",
    spans: tuple[KeyedSpan, ...] = (),
) -> list[bytes]:
    hashes: list[bytes] = []
    BlockHasher(algo).extend(hashes, CacheScope(salt, spans=spans), token_ids, block_size, num_blocks)
    return hashes


@each_algorithm
def test_equal_prefixes_have_equal_hashes_up_to_the_first_difference(algo: HashAlgo):
    one, other = hashes_of([1, 2, 3, 4, 5, 6], 3, algo=algo), hashes_of([1, 2, 3, 9, 5, 6], 3, algo=algo)
    assert one[0] == other[0]
    assert one[1] != other[1]
    assert one[2] != other[2]  # the same two tokens after another prefix are another block


@each_algorithm
def test_sequences_with_different_salts_share_no_hashes(algo: HashAlgo):
    hashes = [each for salt in ("", "a", "b", "\ud800") for each in hashes_of([1, 2, 3, 4], 2, salt=salt, algo=algo)]
    assert len(set(hashes)) == 8


@each_algorithm
def test_hashes_are_the_same_whether_computed_at_once_or_block_by_block(algo: HashAlgo):
    tokens, grown = list(range(12)), list[bytes]()
    hasher = BlockHasher(algo)
    for num_blocks in (0, 1, 1, 3, 4):
        hasher.extend(grown, CacheScope(), tokens, 3, num_blocks)
    assert grown == hashes_of(tokens, 4, block_size=3, algo=algo)
    assert hashes_of(tokens, 1, block_size=4, algo=algo) != hashes_of(tokens, 1, block_size=3, algo=algo)


@each_algorithm
def test_different_token_ids_with_similar_bytes_have_different_hashes(algo: HashAlgo):
    assert hashes_of([1, 256], 1, algo=algo) != hashes_of([257, 0], 1, algo=algo)
    assert hashes_of([2**31 - 1, 0], 1, algo=algo) != hashes_of([0, 2**31 - 1], 1, algo=algo)


def test_sha256_covers_the_previous_hash_and_the_ids():
    hashes = hashes_of([1, 2, 3, 4], 2)
    assert hashes[1] == hashlib.sha256(hashes[0] + struct.pack("<2i", 3, 4)).digest()


def test_sha256_cbor_hashes_canonical_cbor():
    """Every width of number, by the examples of RFC 8949, appendix A."""
    tokens = [10, 23, 24, 100, 1000, 1_000_000]
    root = hashlib.sha256(bytes.fromhex("6449455446")).digest()  # the text "IETF"
    ids = bytes.fromhex("860a17181818641903e81a000f4240")
    expected = hashlib.sha256(bytes.fromhex("835820") + root + ids + bytes.fromhex("f6")).digest()
    assert hashes_of(tokens, 1, block_size=6, salt="IETF", algo="sha256_cbor") == [expected]


def test_each_algorithm_has_its_hash_length():
    lengths = {algo: len(hashes_of([1, 2], 1, algo=algo)[0]) for algo in ALGORITHMS}  # type: ignore[arg-type]
    assert lengths == {"sha256": 32, "sha256_cbor": 32, "blake2b": 16}


@pytest.mark.parametrize(
    ("algo", "expected"),
    [
        ("sha256", "e2adfdc234b36d08bdbea8bb628f13331cba34a4aecd90921f2f880bc13be979"),
        ("sha256_cbor", "a2367b6e87f13b773cb957c0156fd085c7b76a2ad485e97d131056af6818a64d"),
        ("blake2b", "f2f69aa8bab8cbee8e1c90d4ef89eb7c"),
    ],
)
def test_hashes_without_extra_keys_never_change(algo: HashAlgo, expected: str):
    """Stored blocks are found by them."""
    hashes: list[bytes] = []
    BlockHasher(algo).extend(hashes, CacheScope("tenant", 2), [7, 300, 70_000, 2**31 - 1], 2, 2)
    assert hashes[1].hex() == expected


@each_algorithm
def test_extra_keys_change_the_blocks_that_they_touch_and_those_after_them(algo: HashAlgo):
    tokens = list(range(12))

    def spanned(start: int, end: int, key: str = "a") -> list[bytes]:
        return hashes_of(tokens, 6, algo=algo, spans=(KeyedSpan(start, end, key),))

    plain = hashes_of(tokens, 6, algo=algo)
    for first, other in ((plain, spanned(5, 7)), (spanned(5, 7), spanned(5, 7, "b")), (plain, spanned(4, 5))):
        assert [one == two for one, two in zip(first, other, strict=True)] == [True, True, *[False] * 4]
    different = [spanned(4, 6), spanned(5, 6), spanned(4, 8), spanned(5, 8), spanned(4, 6, "b"), plain]
    assert len({hashes[3] for hashes in different}) == len(different)
    assert spanned(12, 14) == plain


@each_algorithm
def test_a_block_has_the_same_hash_whether_its_tokens_are_in_the_prompt_or_sampled(algo: HashAlgo):
    scope, hasher, hashes = CacheScope(spans=(KeyedSpan(1, 4, "a"),)), BlockHasher(algo), list[bytes]()
    for start in (0, 2, 4):
        hasher.append(hashes, scope, struct.pack("<2i", start, start + 1))
    assert hashes == hashes_of(list(range(6)), 3, algo=algo, spans=scope.spans)


def test_sha256_cbor_hashes_extra_keys_as_pairs_of_key_and_offset():
    hashes = hashes_of([5, 6, 7, 8], 2, algo="sha256_cbor", spans=(KeyedSpan(1, 3, "IETF"), KeyedSpan(3, 4, "")))
    head = bytes.fromhex("835820") + hashes[0] + bytes.fromhex("820708")
    pairs = bytes.fromhex("82" + "82" + "6449455446" + "20" + "82" + "60" + "01")  # [["IETF", -1], ["", 1]]
    assert hashes[1] == hashlib.sha256(head + pairs).digest()
