"""Calls that share a thread."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import pytest
from greenlet import greenlet

from stoker.engine.collectives.turns import call_in_turns, give_turn


def test_each_goes_on_where_the_one_before_gives_its_turn():
    seen: list[str] = []

    def call(name: str, count: int) -> Callable[[], str]:
        def work() -> str:
            for number in range(count):
                seen.append(f"{name}{number}")
                give_turn()
            return name

        return work

    assert call_in_turns([call("a", 2), call("b", 3), call("c", 1)]) == ["a", "b", "c"]
    assert seen == ["a0", "b0", "c0", "a1", "b1", "b2"]
    assert call_in_turns([call("d", 1)]) == ["d"]


def test_nobody_else_waits_outside_of_calls():
    give_turn()


def test_a_greenlet_of_somebody_else_gives_no_turn():
    seen = []
    other = greenlet(lambda: (give_turn(), seen.append("went on")))
    other.switch()
    assert seen == ["went on"]


def test_one_that_fails_ends_the_others_where_they_wait():
    ended: list[str] = []

    def waits() -> None:
        try:
            give_turn()
            give_turn()
        finally:
            ended.append("waits")

    def fails() -> None:
        give_turn()
        raise ValueError("no")

    def never() -> None:
        ended.append("never")

    with pytest.raises(ValueError, match="no"):
        call_in_turns([waits, fails])
    assert ended == ["waits"]
    with pytest.raises(ValueError, match="no"):
        call_in_turns([lambda: int("no"), never])
    assert ended == ["waits"]
    assert call_in_turns([lambda: 1]) == [1]


def test_each_thread_has_its_own():
    found: list[list[int]] = []

    def work() -> None:
        def call() -> int:
            give_turn()
            return 1

        found.append(call_in_turns([call] * 3))

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1, 1, 1]] * 4
