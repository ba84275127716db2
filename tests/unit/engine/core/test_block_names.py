from __future__ import annotations

import hashlib
import struct

import pytest

from stoker.engine.core.block_names import BlockNames, HashAlgo

ALGORITHMS = ["sha256", "sha256_cbor", "blake2b"]
each_algorithm = pytest.mark.parametrize("algo", ALGORITHMS)


def names_of(
    token_ids: list[int], num_blocks: int, block_size: int = 2, salt: str = "", algo: HashAlgo = "sha256"
) -> list[bytes]:
    names: list[bytes] = []
    maker = BlockNames(algo)
    maker.extend(names, maker.root(salt), token_ids, block_size, num_blocks)
    return names


@each_algorithm
def test_equal_prefixes_have_equal_names_up_to_the_first_difference(algo: HashAlgo):
    one, other = names_of([1, 2, 3, 4, 5, 6], 3, algo=algo), names_of([1, 2, 3, 9, 5, 6], 3, algo=algo)
    assert one[0] == other[0]
    assert one[1] != other[1]
    assert one[2] != other[2]  # the same two tokens behind another prefix are another block


@each_algorithm
def test_salts_share_no_names(algo: HashAlgo):
    names = [name for salt in ("", "a", "b", "\ud800") for name in names_of([1, 2, 3, 4], 2, salt=salt, algo=algo)]
    assert len(set(names)) == 8


@each_algorithm
def test_names_do_not_depend_on_how_they_were_made(algo: HashAlgo):
    """One by one, as a sequence grows, or all at once."""
    tokens, grown = list(range(12)), list[bytes]()
    maker = BlockNames(algo)
    for num_blocks in (0, 1, 1, 3, 4):
        maker.extend(grown, maker.root(""), tokens, 3, num_blocks)
    assert grown == names_of(tokens, 4, block_size=3, algo=algo)
    assert names_of(tokens, 1, block_size=4, algo=algo) != names_of(tokens, 1, block_size=3, algo=algo)


@each_algorithm
def test_token_ids_do_not_run_into_each_other(algo: HashAlgo):
    assert names_of([1, 256], 1, algo=algo) != names_of([257, 0], 1, algo=algo)
    assert names_of([2**31 - 1, 0], 1, algo=algo) != names_of([0, 2**31 - 1], 1, algo=algo)


def test_sha256_is_over_the_name_before_and_the_ids():
    names = names_of([1, 2, 3, 4], 2)
    assert names[1] == hashlib.sha256(names[0] + struct.pack("<2i", 3, 4)).digest()


def test_canonical_cbor_is_as_the_standard_writes_it():
    """Every width of number, by the examples of RFC 8949, appendix A."""
    tokens = [10, 23, 24, 100, 1000, 1_000_000]
    root = hashlib.sha256(bytes.fromhex("6449455446")).digest()  # the text "IETF"
    ids = bytes.fromhex("860a17181818641903e81a000f4240")
    expected = hashlib.sha256(bytes.fromhex("835820") + root + ids + bytes.fromhex("f6")).digest()
    assert names_of(tokens, 1, block_size=6, salt="IETF", algo="sha256_cbor") == [expected]


def test_names_are_as_long_as_their_algorithm_says():
    lengths = {algo: len(names_of([1, 2], 1, algo=algo)[0]) for algo in ALGORITHMS}  # type: ignore[arg-type]
    assert lengths == {"sha256": 32, "sha256_cbor": 32, "blake2b": 16}
