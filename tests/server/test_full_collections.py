"""Passes of the garbage collector over all objects: not in a burst, and never for much of the time."""

from __future__ import annotations

import asyncio
import gc

import pytest

from stoker.server import full_collections
from stoker.server.full_collections import DUE, MAX_SHARE, OVERDUE, FullCollections


class Clock:
    """A pass takes 2 seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_passes = 0

    def __call__(self) -> float:
        return self.now

    def collect(self) -> None:
        self.num_passes += 1
        self.now += 2.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(full_collections.gc, "collect", made.collect)
    return made


@pytest.mark.parametrize(
    ("num_requests", "num_passes", "expected"),
    [
        (0, DUE - 1, False),
        (0, DUE, True),
        (1, OVERDUE - 1, False),  # it may have a thousand sequences, whose objects a pass visits
        (1, OVERDUE, True),  # memory may be needed
    ],
)
def test_full_passes_wait_until_no_request_is_open_or_much_was_made(
    clock: Clock, num_requests: int, num_passes: int, expected: bool
):
    assert FullCollections(lambda: num_requests, clock).check(num_passes) is expected
    assert clock.num_passes == expected


def test_full_passes_take_a_small_part_of_the_time(clock: Clock):
    collections = FullCollections(lambda: 0, clock)
    for _ in range(2000):
        clock.now += 1.0
        collections.check(OVERDUE)
    assert clock.num_passes > 2
    assert clock.num_passes * 2.0 <= clock.now * MAX_SHARE + 2.0


def test_python_starts_no_full_pass_while_a_server_runs():
    """Each took up to 0.4 s while thousands of sequences began, and no request was answered."""
    before = gc.get_threshold()

    async def scenario() -> tuple[int, int, int]:
        task = asyncio.ensure_future(FullCollections(lambda: 0).run())
        await asyncio.sleep(0)
        meanwhile = gc.get_threshold()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return meanwhile

    young, middle, full = asyncio.run(scenario())
    assert (young, middle) == before[:2]
    assert full > 1_000_000
    assert gc.get_threshold() == before
