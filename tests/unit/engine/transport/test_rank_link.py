"""RankLink: what may be said to a process that does not read, and what a plan says."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from threading import Thread

import pytest

from stoker.engine.step import StepPlan
from stoker.engine.step.plan import BlockCopy, BlockLoad, plan_without_rows
from stoker.engine.transport.rank_link import RankLink, packed
from stoker.engine.transport.rank_messages import Alive, Failed

LIMIT_S = 60.0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_what_is_offered_to_a_process_that_does_not_read_is_not_waited_for(ends: tuple[socket.socket, socket.socket]):
    ours, theirs = ends
    ours.setblocking(False)
    num_bytes = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            num_bytes += ours.send(bytes(4096))
    ours.setblocking(True)
    link = RankLink(ours)
    link.offer(Alive())  # would wait without end
    while num_bytes:
        num_bytes -= len(theirs.recv(min(num_bytes, 1 << 16)))
    link.offer(Alive())
    assert RankLink(theirs).receive() == Alive()


def test_what_is_offered_while_another_thread_sends_is_dropped(ends: tuple[socket.socket, socket.socket]):
    ours, theirs = ends
    link = RankLink(ours)
    with link._sending:
        link.offer(Alive())
    link.offer(Alive())
    assert theirs.recv(1000) == packed(Alive())


def test_what_is_offered_with_a_limit_waits_for_another_thread(ends: tuple[socket.socket, socket.socket]):
    ours, theirs = ends
    link = RankLink(ours)
    link._sending.acquire()
    offering = Thread(target=link.offer, args=(Alive(), LIMIT_S))
    offering.start()
    link._sending.release()
    assert RankLink(theirs).receive() == Alive()
    offering.join(LIMIT_S)


def test_a_message_may_come_in_parts(ends: tuple[socket.socket, socket.socket]):
    ours, theirs = ends
    link, data = RankLink(theirs), packed(Failed("x" * 100, 3)) + packed(Alive(7))
    found = []
    for at in range(len(data)):
        ours.send(data[at : at + 1])
        found.append(link.receive_part())
    assert [each for each in found if each is not None] == [Failed("x" * 100, 3), Alive(7)]
    assert found[-1] == Alive(7)


def test_what_is_offered_to_a_process_that_has_ended_fails(ends: tuple[socket.socket, socket.socket]):
    ours, theirs = ends
    theirs.close()
    with pytest.raises(OSError, match="Broken pipe"):
        RankLink(ours).offer(Alive())


def test_another_rank_knows_where_blocks_are_copied_and_not_what_they_are(
    ends: tuple[socket.socket, socket.socket],
):
    plan = replace(
        plan_without_rows(),
        loads=[BlockLoad((3, 7), memoryview(b"content"))],
        saves=[BlockCopy(b"hash", (1, 2), is_for_others=True), BlockCopy(b"next", (4, 5), is_for_others=False)],
    )
    ours, theirs = map(RankLink, ends)
    ours.send(plan)
    found = theirs.receive()
    assert isinstance(found, StepPlan)
    assert [(load.block_ids, bytes(load.content)) for load in found.loads] == [((3, 7), b"")]
    assert [(save.block_ids, save.block_hash) for save in found.saves] == [((1, 2), b""), ((4, 5), b"")]
