"""JoinedLink: a rank of another node and rank 0 know that the other one is alive."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from queue import SimpleQueue

import msgpack
import pytest

from stoker.engine.cluster import joining
from stoker.engine.cluster.joining import RANK_0_ENDED, JoinedLink, join
from stoker.engine.transport.rank_link import RankLink, packed
from stoker.engine.transport.rank_messages import Alive, Call, Join
from stoker.frames import framed

LIMIT_S = 60.0
CALL = Call("update", bytes(1000))


@pytest.fixture
def ended() -> SimpleQueue[int]:
    """Exit codes of the rank."""
    return SimpleQueue()


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch, ended: SimpleQueue[int]) -> Iterator[tuple[JoinedLink, socket.socket]]:
    """Of the rank, and of rank 0."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    with ours, theirs:
        ours.settimeout(LIMIT_S)
        monkeypatch.setattr(joining, "ALIVE_S", 0.0)
        link = JoinedLink(theirs, 1, ended.put)
        link.start()
        yield link, ours
        link.shut_down()


def test_a_rank_is_alive_while_a_long_message_arrives(ends: tuple[JoinedLink, socket.socket]):
    """It sent nothing until it had all of it, and was given up."""
    link, rank_0 = ends
    data = packed(CALL)
    rank_0.sendall(data[:500])
    for _ in range(3):
        assert RankLink(rank_0).receive() == Alive()
    rank_0.sendall(data[500:])
    assert link.receive() == CALL


def test_a_rank_hears_rank_0_while_it_sends_a_long_message(ends: tuple[JoinedLink, socket.socket]):
    """The thread that receives waited for the one that sends, to send that it is alive."""
    link, rank_0 = ends
    with link._sending:
        for number in range(3):
            RankLink(rank_0).send(Call("update", bytes([number])))
            assert link._messages.get(timeout=LIMIT_S) == Call("update", bytes([number]))


def test_a_rank_ends_where_rank_0_sends_what_is_no_message(
    ends: tuple[JoinedLink, socket.socket], ended: SimpleQueue[int]
):
    """The thread that receives ended, and the rank waited without end."""
    ends[1].sendall(framed(msgpack.packb(["xyz"])))
    assert ended.get(timeout=LIMIT_S) == RANK_0_ENDED


def test_another_program_at_the_address_is_not_node_0():
    """Its first bytes were the length of a message, for which there was no memory."""
    with ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))

        def answer() -> None:
            connection, _ = listener.accept()
            opened.enter_context(connection)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        host, port = listener.getsockname()
        with pytest.raises(TimeoutError, match=r"was not found at .*: a frame of \d+ bytes, at most 67108864 are read"):
            join(host, port, lambda _: Join(1, "here", {}, ""), limit_s=0.0)
        thread.join(LIMIT_S)
