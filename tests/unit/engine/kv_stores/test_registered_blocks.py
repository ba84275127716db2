"""RegisteredBlocks: what is left of a read where the other side is not as it should be; see test_engine_blocks.py."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from stoker.engine.kv_stores import mooncake_mover, registered_blocks
from stoker.engine.kv_stores.block_connection import (
    BlockServer,
    BlocksUnreadable,
    read_blocks,
    send_blocks,
    send_header,
)
from stoker.engine.kv_stores.host_blocks import HostBlocks
from stoker.engine.kv_stores.mooncake_mover import MooncakeMover
from stoker.engine.kv_stores.registered_blocks import Memory, RegisteredBlocks

from .movers import MOVERS, mover_of
from .odd_servers import HOST, header, serving

SIZE = 4096
NAMES = [bytes([number]) * 32 for number in range(4)]
Entries = list[tuple[int, int]]  # address and checksum


def content(number: int) -> bytes:
    return bytes([number + 1]) * SIZE


@pytest.fixture(scope="module", params=MOVERS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def blocks_of(kind: str, num_blocks: int) -> RegisteredBlocks:
    return RegisteredBlocks(mover_of(kind), num_blocks * SIZE, SIZE)


@pytest.fixture(scope="module")
def theirs(kind: str) -> RegisteredBlocks:
    """Has the first three blocks."""
    blocks = blocks_of(kind, 3)
    for number, name in enumerate(NAMES[:3]):
        blocks.put(name, memoryview(content(number)))
    return blocks


@pytest.fixture(scope="module")
def ours(kind: str) -> RegisteredBlocks:
    return blocks_of(kind, 0)


@pytest.fixture(scope="module")
def server(theirs: RegisteredBlocks) -> Iterator[BlockServer]:
    server = BlockServer(HOST, 0, "alike", theirs.answer)
    yield server
    server.close()


def read(ours: RegisteredBlocks, port: int, names: list[bytes] = NAMES) -> list[bytes]:
    return [bytes(block) for block in ours.read(HOST, port, "alike", names)]


def test_blocks_are_read_up_to_the_first_that_is_missing(ours: RegisteredBlocks, server: BlockServer):
    for _ in range(3):
        assert read(ours, server.port) == [content(0), content(1), content(2)]
    assert read(ours, server.port, [NAMES[2], NAMES[3], NAMES[0]]) == [content(2)]
    assert read(ours, server.port, [NAMES[3]]) == read(ours, server.port, []) == []


def test_the_least_recently_used_block_makes_room(kind: str):
    blocks = blocks_of(kind, 2)
    for number in (0, 0, 1):
        blocks.put(NAMES[number], memoryview(content(number)))
    blocks._entry(NAMES[0])  # another engine reads it
    blocks.put(NAMES[2], memoryview(content(2)))
    assert [name in blocks for name in NAMES] == [True, False, True, False]
    assert blocks.get(NAMES[0]) == content(0)
    assert blocks.get(NAMES[1]) is None
    blocks_of(kind, 0).put(NAMES[0], memoryview(content(0)))


def changed(theirs: RegisteredBlocks, change: Callable[[Entries], Any]) -> Callable[[socket.socket], None]:
    """An answer that says something else about where the blocks are."""

    def answer(connection: socket.socket) -> None:
        entries = [entry for name in NAMES[:3] if (entry := theirs._entry(name)) is not None]
        send_header(connection, [theirs._mover.own, change(entries)])

    return answer


def read_of(ours: RegisteredBlocks, answer: Callable[[socket.socket], None]) -> tuple[list[bytes], str]:
    with serving(answer) as port, pytest.raises(BlocksUnreadable) as caught:
        read(ours, port)
    return [bytes(block) for block in caught.value.contents], str(caught.value)


def test_a_block_that_was_replaced_meanwhile_ends_what_is_read(theirs: RegisteredBlocks, ours: RegisteredBlocks):
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


@pytest.mark.parametrize("change", CHANGES)
def test_an_answer_that_is_none_gives_no_blocks(
    theirs: RegisteredBlocks, ours: RegisteredBlocks, server: BlockServer, change: str
):
    contents, _ = read_of(ours, changed(theirs, CHANGES[change]))
    assert contents == []
    assert read(ours, server.port) == [content(0), content(1), content(2)]  # it still works


@pytest.mark.parametrize("source", [b"", b"127.0.0.1:1", b"\0" * 1000, b"\xff", None, "text"], ids=repr)
def test_a_source_that_is_none_gives_no_blocks(ours: RegisteredBlocks, source: Any):
    answer = header([source, [[1 << 20, 0]]])
    assert read_of(ours, lambda connection: connection.sendall(answer))[0] == []


STUCK = {"transfer": "PROC", "check_xfer_state": "PROC", "transfer_check_status": 0}  # what a transfer that runs says
REFUSED = {"transfer": "ERR", "batch_transfer_async_read": 0}


class Saying:
    """A library that says something of its own instead of doing something."""

    def __init__(self, real: Any, says: dict[str, Any]) -> None:
        self._real, self._says = real, says

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: self._says[name]) if name in self._says else getattr(self._real, name)


@pytest.mark.parametrize(
    ("says", "reason"),
    [(STUCK, "no progress"), (REFUSED, "transfer")],
    ids=["stuck", "refused"],
)
def test_a_transfer_that_fails_or_makes_no_progress_is_given_up(
    kind: str,
    ours: RegisteredBlocks,
    server: BlockServer,
    says: dict[str, Any],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
):
    library = "_agent" if kind == "nixl" else "_engine"
    with monkeypatch.context() as patched:
        patched.setattr(registered_blocks, "longest_s", lambda num_bytes: 0.05)
        patched.setattr(ours._mover, library, Saying(getattr(ours._mover, library), says))
        with pytest.raises(BlocksUnreadable, match=reason):
            read(ours, server.port)
    assert read(ours, server.port) == [content(0), content(1), content(2)]


@pytest.fixture
def reader() -> MooncakeMover:
    mover = mover_of("mooncake")
    assert isinstance(mover, MooncakeMover)
    return mover


def read_with(mover: MooncakeMover, source: bytes, address: int, limit_s: float) -> Memory:
    contents = np.zeros((1, SIZE), np.uint8)
    mover.read(source, [address], contents, time.monotonic() + limit_s)
    return contents


def test_mooncake_keeps_memory_until_nothing_is_written_there(reader: MooncakeMover, monkeypatch: pytest.MonkeyPatch):
    """Transfers that run when they are given up; there are no more of them than a number."""
    other, theirs = mover_of("mooncake"), np.full((1, SIZE), 7, np.uint8)
    other.keep_registered(theirs)
    kept: list[weakref.ref[Memory]] = []
    with monkeypatch.context() as patched:
        patched.setattr(reader, "_engine", Saying(reader._engine, STUCK))
        for _ in range(mooncake_mover._MAX_READS):
            contents = np.zeros((1, SIZE), np.uint8)
            kept.append(weakref.ref(contents))
            with pytest.raises(TimeoutError):
                reader.read(other.own, [theirs.ctypes.data], contents, time.monotonic() + 0.05)
            del contents
        with pytest.raises(ConnectionError, match="earlier transfers"):
            read_with(reader, other.own, theirs.ctypes.data, 0.05)
        assert all(each() is not None for each in kept)
    deadline = time.monotonic() + 30
    while any(each() is not None for each in kept) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(each() is None for each in kept)
    assert read_with(reader, other.own, theirs.ctypes.data, 30).min() == 7


def test_mooncake_does_not_wait_longer_for_an_engine_that_does_not_answer(reader: MooncakeMover):
    with socket.create_server((HOST, 0)) as silent:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            read_with(reader, f"{HOST}:{silent.getsockname()[1]}".encode(), 1 << 20, 0.2)
        assert time.monotonic() - began < 20  # Mooncake alone waits a minute


def test_mooncake_reads_at_an_address_of_ipv6():
    """In a process of its own: Mooncake looks once at which addresses it is to use."""
    mover_of("mooncake")
    code = f"""
import sys, time
import numpy as np
from {mooncake_mover.__name__} import MooncakeMover

memory, contents = np.full((1, 64), 7, np.uint8), np.zeros((1, 64), np.uint8)
theirs, ours = MooncakeMover("::1", "tcp"), MooncakeMover("::1", "tcp")
theirs.keep_registered(memory)
ours.read(theirs.own, [memory.ctypes.data], contents, time.monotonic() + 30)
sys.exit(int(contents.min() != 7))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_engines_with_different_connectors_read_nothing_of_each_other(ours: RegisteredBlocks, server: BlockServer):
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
