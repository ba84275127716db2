"""Blocks over TCP: what is read, and what is left of it where the other side is not as it should be."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from functools import partial

import msgpack
import pytest
from tests.free_ports import free_port

from stoker.engine.kv_stores import block_connection
from stoker.engine.kv_stores.block_connection import (
    BlockServer,
    BlocksUnreadable,
    CannotServeBlocks,
    read_blocks,
    send_blocks,
)
from stoker.engine.kv_stores.host_blocks import HostBlocks

from .odd_servers import HOST, header, read_header, serving

SIZE = 1 << 16
NAMES = [bytes([number]) * 32 for number in range(4)]
NOTHING = partial(send_blocks, HostBlocks(0))


def content(number: int) -> bytes:
    return bytes([number + 1]) * SIZE


@pytest.fixture(scope="module")
def server() -> Iterator[BlockServer]:
    """Has the first three blocks. One for all tests: closing it takes half a second."""
    blocks = HostBlocks(1 << 30)
    for number, name in enumerate(NAMES[:3]):
        blocks.put(name, memoryview(content(number)))
    server = BlockServer(HOST, 0, "alike", partial(send_blocks, blocks))
    yield server
    server.close()


def read(port: int, names: list[bytes] = NAMES, *, fingerprint: str = "alike", size: int = SIZE) -> list[bytes]:
    return [bytes(block) for block in read_blocks(HOST, port, fingerprint, names, size)]


def read_of(answer: bytes) -> tuple[list[bytes], str]:
    """What is read of this answer, and why not more."""
    with serving(lambda connection: connection.sendall(answer)) as port, pytest.raises(BlocksUnreadable) as caught:
        read(port)
    return [bytes(block) for block in caught.value.contents], str(caught.value)


def test_blocks_are_read_up_to_the_first_that_is_missing(server: BlockServer):
    assert read(server.port) == [content(0), content(1), content(2)]
    assert read(server.port, [NAMES[2], NAMES[0]]) == [content(2), content(0)]
    assert read(server.port, [NAMES[0], NAMES[3], NAMES[1]]) == [content(0)]
    assert read(server.port, [NAMES[3]]) == read(server.port, []) == []


def test_an_engine_of_another_model_gets_no_block(server: BlockServer):
    with pytest.raises(BlocksUnreadable, match="it has another model, number format or block size") as caught:
        read(server.port, fingerprint="other")
    assert caught.value.contents == []


def test_blocks_of_another_size_are_not_read(server: BlockServer):
    with pytest.raises(BlocksUnreadable, match="not understood"):
        read(server.port, size=SIZE - 1)


def test_several_readers_are_served_at_a_time(server: BlockServer):
    with socket.create_connection((HOST, server.port)):  # it sends nothing
        assert read(server.port) == [content(0), content(1), content(2)]


@pytest.mark.parametrize("num_bytes", [0, 1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE + 1])
def test_what_came_before_a_connection_was_cut_is_used(num_bytes: int):
    whole = content(0) + content(1) + content(2)
    contents, reason = read_of(header([SIZE] * 3) + whole[:num_bytes])
    assert contents == [content(0), content(1), content(2)][: num_bytes // SIZE]
    assert "ended early" in reason


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0\0",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack("!Q", 100) + b"short",
        struct.pack("!Q", (1 << 24) + 1),
        struct.pack("!Q", 3) + b"\xc1\xc1\xc1",
        struct.pack("!Q", 2) + b"\x01\x02",
        struct.pack("!Q", 100) + b"\x91" * 100,
        header(None),
        header({"sizes": [SIZE]}),
        header({1: 2}),
        header([SIZE - 1]),
        header([-1]),
        header([1 << 62]),
        header([str(SIZE)]),
        header([float(SIZE)] * 2),
        header([SIZE] * 5),
        header("\ud800".encode("utf-8", "surrogatepass")),
    ],
    ids=lambda answer: repr(answer[:24]),
)
def test_an_answer_that_is_none_gives_no_blocks(answer: bytes):
    contents, reason = read_of(answer)
    assert contents == []
    assert reason.startswith(f"{HOST}, port ")


def test_blocks_that_do_not_fit_into_memory_are_not_read(server: BlockServer, monkeypatch: pytest.MonkeyPatch):
    receive = block_connection._receive

    def receive_little(connection: socket.socket, num_bytes: int, deadline: float) -> memoryview:
        if num_bytes >= SIZE:
            raise MemoryError
        return receive(connection, num_bytes, deadline)

    monkeypatch.setattr(block_connection, "_receive", receive_little)
    with pytest.raises(BlocksUnreadable, match="MemoryError") as caught:
        read(server.port)
    assert caught.value.contents == []


def test_a_server_that_stops_answering_is_left(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(block_connection, "SILENCE_S", 1.0)
    is_left = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(header([SIZE] * 2) + content(0))
        assert is_left.wait(60)

    with serving(answer) as port:
        with pytest.raises(BlocksUnreadable, match="timed out") as caught:
            read(port)
        is_left.set()
    assert [bytes(block) for block in caught.value.contents] == [content(0)]


@pytest.mark.parametrize("host", [HOST, "no-such-host.invalid", "a..b", "x" * 300, "a\0b", "\ud800", "a b"])
def test_an_address_where_nothing_is_gives_no_blocks(host: str):
    with pytest.raises(BlocksUnreadable) as caught:
        read_blocks(host, free_port(), "alike", NAMES, SIZE)
    assert caught.value.contents == []


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("!Q", (1 << 24) + 1),
        struct.pack("!Q", 3) + b"\xc1\xc1\xc1",
        header(None),
        header(["alike"]),
        header([1, NAMES]),
        header(["alike", {"a": 1}]),
        header(["alike", "text"]),
    ],
    ids=lambda data: repr(data[:24]),
)
def test_what_is_no_request_gets_no_answer_and_harms_nobody(server: BlockServer, request_bytes: bytes):
    with socket.create_connection((HOST, server.port), 60) as connection:
        connection.sendall(request_bytes)
        with contextlib.suppress(OSError):  # it may have closed, with bytes that it has not read
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert read(server.port) == [content(0), content(1), content(2)]


def test_names_that_are_no_hashes_name_no_blocks(server: BlockServer):
    for odd in (1, None, "text", [NAMES[0]], {}):
        with socket.create_connection((HOST, server.port), 60) as connection:
            connection.sendall(header(["alike", [NAMES[0], odd, NAMES[1]]]))
            assert read_header(connection) == [SIZE]


def test_a_reader_that_stops_reading_is_left(server: BlockServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(block_connection, "SILENCE_S", 0.05)
    with socket.create_connection((HOST, server.port), 60) as connection:
        connection.sendall(struct.pack("!Q", 9))  # and no request
        assert connection.recv(1) == b""
    monkeypatch.undo()
    assert read(server.port) == [content(0), content(1), content(2)]


def test_an_address_that_is_taken_or_not_here_is_an_error_that_names_the_option(server: BlockServer):
    for host, port in ((HOST, server.port), ("192.0.2.1", 0), ("no-such-host.invalid", 0)):
        with pytest.raises(CannotServeBlocks, match=r"`kv_transfer\.kv_ip`: cannot listen on"):
            BlockServer(host, port, "alike", NOTHING)


def test_a_closed_server_frees_its_port():
    server = BlockServer(HOST, 0, "alike", NOTHING)
    assert read(server.port) == []
    server.close()
    with pytest.raises(BlocksUnreadable, match="refused"):
        read(server.port)
    BlockServer(HOST, server.port, "alike", NOTHING).close()


def test_a_large_request_is_answered(server: BlockServer):
    names = [NAMES[0], *(number.to_bytes(32, "big") for number in range(100, 10_000))]
    assert len(msgpack.packb(["alike", names])) < 1 << 24
    assert read(server.port, names) == [content(0)]


def test_a_peer_that_sends_slowly_is_left(monkeypatch: pytest.MonkeyPatch):
    """Each byte comes in time, and all of them would take without end."""
    monkeypatch.setattr(block_connection, "longest_s", lambda num_bytes: -1.0 if num_bytes == SIZE else 60.0)
    with (
        serving(lambda connection: connection.sendall(header([SIZE]) + content(0))) as port,
        pytest.raises(BlocksUnreadable, match="too slowly"),
    ):
        read_blocks(HOST, port, "alike", NAMES, SIZE)


def test_a_header_that_comes_slowly_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(block_connection, "longest_s", lambda num_bytes: -1.0)
    with (
        serving(lambda connection: connection.sendall(header([]))) as port,
        pytest.raises(BlocksUnreadable, match="too slowly"),
    ):
        read_blocks(HOST, port, "alike", NAMES, SIZE)


def test_of_a_request_with_another_fingerprint_the_rest_is_not_received(server: BlockServer):
    """16 MB were received and parsed before it was compared, which held the engine's interpreter for seconds."""
    lists = b"\x92\xa1x\xdd" + struct.pack("!I", 1 << 20)
    with socket.create_connection((HOST, server.port), 60) as connection:
        connection.sendall(struct.pack("!Q", 1 << 20) + lists + b"\x90" * 64)  # and no more of them
        assert read_header(connection) == "has another model, number format or block size"


def test_a_request_longer_than_all_hashes_is_not_received(server: BlockServer):
    limit = block_connection._MAX_HASHES * block_connection._MAX_ENTRY_BYTES
    with socket.create_connection((HOST, server.port), 60) as connection:
        connection.sendall(struct.pack("!Q", limit + 100))
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""


@pytest.mark.parametrize("entry", [[], {}, [[[]]], {"a": [1]}, "x" * 65, b"x" * 65, msgpack.ExtType(1, b"x")])
def test_entries_that_are_no_hashes_are_not_even_parsed(entry: object):
    packed = memoryview(msgpack.packb([NAMES[0], entry, NAMES[1]]))
    assert list(block_connection._hashes(packed)) == [NAMES[0]]


def test_an_answer_is_not_longer_than_one_about_all_blocks():
    with (
        serving(lambda connection: connection.sendall(struct.pack("!Q", 1 << 19))) as port,
        pytest.raises(BlocksUnreadable, match="a frame of 524288 bytes"),
    ):
        read(port)


def test_a_peer_has_few_connections_at_a_time(server: BlockServer, monkeypatch: pytest.MonkeyPatch):
    """Each connection got a thread, however many there were."""
    monkeypatch.setattr(block_connection, "_MAX_READERS_OF_ONE", 3)
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection((HOST, server.port), 60)) for _ in range(3)]
        with pytest.raises(BlocksUnreadable):
            read(server.port)
        for connection in held:  # they have their threads, which end with them
            connection.sendall(header(["other", []]))
            assert read_header(connection) == "has another model, number format or block size"
            assert connection.recv(1) == b""
    while True:
        with contextlib.suppress(BlocksUnreadable):
            assert read(server.port) == [content(0), content(1), content(2)]
            return
