"""Calls that share a thread."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import pytest

from stoker.engine.parallel.turns import Turns


def test_each_goes_on_where_the_one_before_gives_its_turn():
    turns, seen = Turns(), []

    def call(name: str, count: int) -> Callable[[], str]:
        def work() -> str:
            for number in range(count):
                seen.append(f"{name}{number}")
                turns.give()
            return name

        return work

    assert turns.compute([call("a", 2), call("b", 3), call("c", 1)]) == ["a", "b", "c"]
    assert seen == ["a0", "b0", "c0", "a1", "b1", "b2"]
    assert turns.compute([call("d", 1)]) == ["d"]


def test_nobody_else_waits_outside_of_calls():
    Turns().give()


def test_one_that_fails_ends_the_others_where_they_wait():
    turns, ended = Turns(), []

    def waits() -> None:
        try:
            turns.give()
            turns.give()
        finally:
            ended.append("waits")

    def fails() -> None:
        turns.give()
        raise ValueError("no")

    def never() -> None:
        ended.append("never")

    with pytest.raises(ValueError, match="no"):
        turns.compute([waits, fails])
    assert ended == ["waits"]
    with pytest.raises(ValueError, match="no"):
        turns.compute([lambda: int("no"), never])
    assert ended == ["waits"]
    assert turns.compute([lambda: 1]) == [1]


def test_each_thread_has_its_own():
    found: list[list[int]] = []

    def work() -> None:
        turns = Turns()

        def call() -> int:
            turns.give()
            return 1

        found.append(turns.compute([call] * 3))

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1, 1, 1]] * 4
