"""The blocks that a storage has, as far as is known."""

from __future__ import annotations

import pytest

from stoker.engine.kv_stores import known_blocks
from stoker.engine.kv_stores.known_blocks import KnownBlocks


def test_the_first_of_some_blocks_are_stored_up_to_one_that_is_not():
    known = KnownBlocks()
    known.add([b"a", b"b", b"d"])
    assert known.stored([b"a", b"b", b"c", b"d"]).hashes == (b"a", b"b")
    known.forget([b"a", b"unknown"])
    assert known.stored([b"a", b"b"]).hashes == ()
    assert not known.touch(b"a")


def test_those_that_were_not_used_for_the_longest_time_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(known_blocks, "MAX_KNOWN", 2)
    known = KnownBlocks()
    known.add([b"a", b"b"])
    assert known.touch(b"a")
    known.add([b"c"])
    assert [known.touch(each) for each in (b"a", b"b", b"c")] == [True, False, True]
