from __future__ import annotations

from stoker.engine.kv_stores.host_blocks import HostBlocks


def block(number: int, size: int = 4) -> memoryview:
    return memoryview(bytes([number]) * size)


def kept(blocks: HostBlocks) -> set[int]:
    return {number for number in range(10) if bytes([number]) in blocks}


def test_the_least_recently_used_block_makes_room():
    blocks = HostBlocks(12)
    for number in range(3):
        blocks.put(bytes([number]), block(number))
    assert blocks.get(b"\0") == block(0)
    blocks.put(b"\3", block(3))
    assert kept(blocks) == {0, 2, 3}
    blocks.put(b"\4", block(4, 8))
    assert kept(blocks) == {3, 4}
    assert blocks.get(b"\1") is None


def test_a_block_larger_than_the_limit_displaces_none():
    blocks = HostBlocks(8)
    blocks.put(b"\0", block(0, 8))
    blocks.put(b"\1", block(1, 9))
    assert kept(blocks) == {0}
    HostBlocks(0).put(b"\0", block(0))


def test_a_block_is_counted_once():
    blocks = HostBlocks(8)
    for number in (0, 0, 1):
        blocks.put(bytes([number]), block(number))
    assert kept(blocks) == {0, 1}


def test_a_block_that_is_asked_for_again_was_used():
    blocks = HostBlocks(8)
    for number in (0, 1):
        blocks.put(bytes([number]), block(number))
    assert blocks.touch(b"\0")
    assert not blocks.touch(b"\2")
    blocks.put(b"\2", block(2))
    assert kept(blocks) == {0, 2}
