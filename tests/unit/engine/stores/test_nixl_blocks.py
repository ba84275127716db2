"""NixlBlocks: what is left of a transfer where the other side is not as it should be; see test_engine_blocks.py."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from stoker.engine.stores import nixl_blocks
from stoker.engine.stores.block_connection import BlockServer, BlocksUnreadable, read_blocks, send_blocks, send_header
from stoker.engine.stores.host_blocks import HostBlocks
from stoker.engine.stores.nixl_blocks import NixlBlocks, NixlMissing

from .odd_servers import HOST, header, serving

SIZE = 4096
NAMES = [bytes([number]) * 32 for number in range(4)]
Entries = list[tuple[int, int]]  # address and checksum


def content(number: int) -> bytes:
    return bytes([number + 1]) * SIZE


def blocks_of(num_blocks: int) -> NixlBlocks:
    try:
        return NixlBlocks(num_blocks * SIZE, SIZE)
    except NixlMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def theirs() -> NixlBlocks:
    """Has the first three blocks."""
    blocks = blocks_of(3)
    for number, name in enumerate(NAMES[:3]):
        blocks.put(name, memoryview(content(number)))
    return blocks


@pytest.fixture(scope="module")
def ours() -> NixlBlocks:
    return blocks_of(0)


@pytest.fixture(scope="module")
def server(theirs: NixlBlocks) -> Iterator[BlockServer]:
    server = BlockServer(HOST, 0, "alike", theirs.answer)
    yield server
    server.close()


def read(ours: NixlBlocks, port: int, names: list[bytes] = NAMES) -> list[bytes]:
    return [bytes(block) for block in ours.read(HOST, port, "alike", names)]


def test_blocks_are_read_up_to_the_first_that_is_missing(ours: NixlBlocks, server: BlockServer):
    for _ in range(3):
        assert read(ours, server.port) == [content(0), content(1), content(2)]
    assert read(ours, server.port, [NAMES[2], NAMES[3], NAMES[0]]) == [content(2)]
    assert read(ours, server.port, [NAMES[3]]) == read(ours, server.port, []) == []


def test_the_least_recently_used_block_makes_room():
    blocks = blocks_of(2)
    for number in (0, 0, 1):
        blocks.put(NAMES[number], memoryview(content(number)))
    blocks._entry(NAMES[0])  # another engine reads it
    blocks.put(NAMES[2], memoryview(content(2)))
    assert [name in blocks for name in NAMES] == [True, False, True, False]
    assert blocks.get(NAMES[0]) == content(0)
    assert blocks.get(NAMES[1]) is None
    blocks_of(0).put(NAMES[0], memoryview(content(0)))


def changed(theirs: NixlBlocks, change: Callable[[Entries], Any]) -> Callable[[socket.socket], None]:
    """An answer that says something else about where the blocks are."""

    def answer(connection: socket.socket) -> None:
        entries = [entry for name in NAMES[:3] if (entry := theirs._entry(name)) is not None]
        send_header(connection, [theirs._agent.get_agent_metadata(), change(entries)])

    return answer


def read_of(ours: NixlBlocks, answer: Callable[[socket.socket], None]) -> tuple[list[bytes], str]:
    with serving(answer) as port, pytest.raises(BlocksUnreadable) as caught:
        read(ours, port)
    return [bytes(block) for block in caught.value.contents], str(caught.value)


def test_a_block_that_was_replaced_meanwhile_ends_what_is_read(theirs: NixlBlocks, ours: NixlBlocks):
    def replaced(entries: Entries) -> Entries:
        return [entries[0], (entries[1][0], zlib.crc32(b"another block")), entries[2]]

    contents, reason = read_of(ours, changed(theirs, replaced))
    assert contents == [content(0)]
    assert "replaced" in reason


CHANGES: dict[str, Callable[[Entries], Any]] = {
    "too many": lambda entries: entries * 2,
    "no pairs": lambda entries: [address for address, _ in entries],
    "fractions": lambda entries: [(float(address), checksum) for address, checksum in entries],
    "negative": lambda entries: [(-1, checksum) for _, checksum in entries],
    "too large": lambda entries: [((1 << 64) - 1, checksum) for _, checksum in entries],
    "not registered": lambda entries: [(address + (1 << 40), checksum) for address, checksum in entries],
    "nothing": lambda entries: None,
}


@pytest.mark.parametrize("kind", CHANGES)
def test_an_answer_that_is_none_gives_no_blocks(theirs: NixlBlocks, ours: NixlBlocks, server: BlockServer, kind: str):
    contents, _ = read_of(ours, changed(theirs, CHANGES[kind]))
    assert contents == []
    assert read(ours, server.port) == [content(0), content(1), content(2)]  # it still works


@pytest.mark.parametrize("metadata", [b"", b"nixl", b"\0" * 1000, None, "text"], ids=repr)
def test_an_agent_that_is_none_gives_no_blocks(ours: NixlBlocks, metadata: Any):
    answer = header([metadata, [[1 << 20, 0]]])
    assert read_of(ours, lambda connection: connection.sendall(answer))[0] == []


def test_a_transfer_that_makes_no_progress_is_given_up(
    ours: NixlBlocks, server: BlockServer, monkeypatch: pytest.MonkeyPatch
):
    class Stuck:
        def __getattr__(self, name: str) -> Any:
            return getattr(agent, name)

        def transfer(self, handle: Any) -> str:
            agent.transfer(handle)
            return "PROC"

        def check_xfer_state(self, handle: Any) -> str:
            agent.check_xfer_state(handle)
            return "PROC"

    agent = ours._agent
    with monkeypatch.context() as patched:
        patched.setattr(nixl_blocks, "longest_s", lambda num_bytes: 0.05)
        patched.setattr(ours, "_agent", Stuck())
        with pytest.raises(BlocksUnreadable, match="no progress"):
            read(ours, server.port)
    assert read(ours, server.port) == [content(0), content(1), content(2)]


def test_engines_with_different_connectors_read_nothing_of_each_other(ours: NixlBlocks, server: BlockServer):
    with pytest.raises(BlocksUnreadable, match="not understood"):
        read_blocks(HOST, server.port, "alike", NAMES, SIZE)
    blocks = HostBlocks(SIZE)
    blocks.put(NAMES[0], memoryview(content(0)))
    over_tcp = BlockServer(HOST, 0, "alike", partial(send_blocks, blocks))
    try:
        with pytest.raises(BlocksUnreadable, match="both engines need the same"):
            read(ours, over_tcp.port)
    finally:
        over_tcp.close()
