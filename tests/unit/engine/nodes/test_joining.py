"""JoinedLink: a rank of another node and rank 0 know that the other one is alive."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from stoker.engine.nodes import joining
from stoker.engine.nodes.joining import JoinedLink
from stoker.engine.nodes.rank_link import Alive, Call, RankLink, packed

LIMIT_S = 60.0
CALL = Call("update", bytes(1000))


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[JoinedLink, socket.socket]]:
    """Of the rank, and of rank 0."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    with ours, theirs:
        ours.settimeout(LIMIT_S)
        monkeypatch.setattr(joining, "ALIVE_S", 0.0)
        link = JoinedLink(theirs, 1, lambda _: None)
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
