"""Connections between the stages of a pipeline."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.engine.cluster.ring import KEY_BYTES, connect_stages, listen

KEY = b"k" * KEY_BYTES


@pytest.mark.parametrize(("num_stages", "size"), [(2, 1), (3, 1), (2, 2)])
def test_each_rank_is_connected_to_those_of_the_stages_next_to_it(num_stages: int, size: int):
    listeners = [listen("127.0.0.1") for _ in range(num_stages * size)]
    places = [place for _, place in listeners]
    with ThreadPoolExecutor(len(listeners)) as pool:
        calls = [
            pool.submit(connect_stages, listener, KEY, places, rank, size)
            for rank, (listener, _) in enumerate(listeners)
        ]
        ends = [call.result() for call in calls]
    for rank, (_, after) in enumerate(ends):
        after.sendall(bytes([rank]))
    for rank, (before, _) in enumerate(ends):
        assert before.recv(1)[0] == (rank - size) % len(ends)
    for end in (end for pair in ends for end in pair):
        end.close()


def test_a_program_without_the_key_is_not_taken_for_a_rank():
    (first, place), (second, other) = listen("127.0.0.1"), listen("127.0.0.1")
    with socket.create_connection(tuple(place)) as stranger, ThreadPoolExecutor(2) as pool:
        stranger.sendall(b"x" * KEY_BYTES + bytes(8))
        calls = [
            pool.submit(connect_stages, listener, KEY, [place, other], rank, 1)
            for rank, listener in enumerate((first, second))
        ]
        ends = [call.result() for call in calls]
        assert stranger.recv(1) == b""
    assert ends[0][0].getpeername() == ends[1][1].getsockname()
    for end in (end for pair in ends for end in pair):
        end.close()


def test_the_end_of_another_rank_ends_the_waiting():
    (listener, place), (other, its) = listen("127.0.0.1"), listen("127.0.0.1")

    def check() -> None:
        raise InterruptedError

    with other, pytest.raises(InterruptedError):
        connect_stages(listener, KEY, [place, its], 0, 1, check)
