"""Numbers that several API processes share. Two mappings of one file stand for two processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stoker.server.access.auth import Key, KeyLimits
from stoker.server.access.key_usage import KeyUsage
from stoker.server.access.shared_state import SharedState
from stoker.server.protocol.errors import ApiError

KEY = Key("a", b"", limits=KeyLimits(requests_per_minute=3, concurrent_requests=2))


def is_admitted(usage: KeyUsage) -> bool:
    try:
        with usage.admitted(KEY):
            return True
    except ApiError:
        return False


def test_processes_count_the_requests_of_a_key_together():
    """Each process alone would admit as many as the limit."""
    one = SharedState(2)
    two = SharedState(2, process=1, fd=one.fd)
    first, second = KeyUsage(lambda: 5.0, one), KeyUsage(lambda: 5.0, two)
    assert [is_admitted(first), is_admitted(second), is_admitted(first)] == [True] * 3
    assert not is_admitted(second)
    assert not is_admitted(first)


def test_the_requests_of_a_process_that_ended_no_longer_run():
    one = SharedState(2)
    two = SharedState(2, process=1, fd=one.fd)
    now = [5.0]
    first, second = KeyUsage(lambda: now[0], one), KeyUsage(lambda: now[0], two)
    with first.admitted(KEY):
        running = second.admitted(KEY)
        running.__enter__()  # its process ends before the request
        two.set_live(1)
        assert not is_admitted(first)
        assert one.num_live == 1
        one.forget(1)
        assert is_admitted(first)
        assert one.num_live == 0


def test_an_epoch_of_the_cache_is_that_of_all_processes():
    one = SharedState(3)
    others = [SharedState(3, process=index, fd=one.fd) for index in (1, 2)]
    others[0].next_epoch()
    assert [state.epoch for state in (one, *others)] == [1, 1, 1]
    assert SharedState().epoch == 0


def test_two_names_have_two_rows_also_when_many_are_known():
    state = SharedState()
    for number in range(3000):
        with state.locked(f"name-{number}") as row:
            row[1] += number
    for number in range(3000):
        with state.locked(f"name-{number}") as row:
            assert row[1] == number


ADD = """
import sys
from stoker.server.access.shared_state import SharedState
state = SharedState(3, process=int(sys.argv[2]), fd=int(sys.argv[1]))
for _ in range(5000):
    with state.locked("a") as row:
        row[1] += 1
"""


@pytest.mark.slow
def test_changes_of_two_processes_do_not_get_lost():
    state = SharedState(3)
    commands = [[sys.executable, "-c", ADD, str(state.fd), str(index)] for index in (1, 2)]
    processes = [subprocess.Popen(command, pass_fds=[state.fd]) for command in commands]
    assert [process.wait() for process in processes] == [0, 0]
    with state.locked("a") as row:
        assert row[1] == 10000
