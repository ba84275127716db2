from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Iterator

import pytest

from stoker.config.resolve.rule_tables.division import MAX_SHARING
from stoker.engine.host.neighbours import Neighbours
from stoker.engine.host.shared_memory import MAX_RANKS
from stoker.engine.process import Link, StopSignal


@pytest.fixture
def neighbours() -> Iterator[Neighbours]:
    made = Neighbours.new(3)
    yield made
    for fd in made.descriptors:
        os.close(fd)


def test_a_process_makes_the_same_from_what_it_inherits(neighbours: Neighbours) -> None:
    inherited = Neighbours.inherited([int(word) for word in neighbours.words(2)])
    assert (inherited.rank, inherited.size) == (2, 3)
    assert inherited.descriptors == neighbours.descriptors
    inherited.memory.close_exchange()
    assert neighbours.memory.is_closed


def test_a_doorbell_is_heard_until_it_is_silenced(neighbours: Neighbours) -> None:
    doorbell = neighbours.own_doorbell

    def is_heard() -> bool:
        return bool(select.select([doorbell.fd], [], [], 0)[0])

    assert not is_heard()
    doorbell.ring()
    doorbell.ring()
    assert is_heard()
    doorbell.silence()
    doorbell.silence()  # it has not been rung
    assert not is_heard()


@pytest.fixture
def stop() -> Iterator[StopSignal]:
    """It takes signals, which are given back."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    made = StopSignal()
    yield made
    signal.set_wakeup_fd(-1)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    for end in (made._reader, made._writer):
        end.close()


def test_a_doorbell_ends_the_waiting_for_messages(neighbours: Neighbours, stop: StopSignal) -> None:
    with socket.socket(socket.AF_UNIX) as listener, contextlib.closing(Link(_bound(listener), stop)) as link:
        link.watch(neighbours.own_doorbell)
        neighbours.doorbells[0].ring()
        assert link.receive(None) == []  # there is no message
        assert not select.select([neighbours.own_doorbell.fd], [], [], 0)[0]


def _bound(listener: socket.socket) -> int:
    listener.bind("")  # an abstract name that the system chooses
    listener.listen(1)
    return listener.detach()


def test_the_configuration_refuses_more_replicas_than_the_memory_has_places_for() -> None:
    assert MAX_SHARING == MAX_RANKS
