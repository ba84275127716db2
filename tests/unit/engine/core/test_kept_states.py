from __future__ import annotations

from stoker.engine.core.kept_states import KeptStates


def keep(states: KeptStates, block_hash: bytes, *, is_passing: bool = False, replaced: bytes | None = None) -> int:
    place = states.take(replaced)
    assert place is not None
    states.publish(block_hash, place, is_passing=is_passing)
    return place


def test_the_least_recently_used_state_gives_its_place():
    states = KeptStates(2, first_place=5)
    assert (keep(states, b"a"), keep(states, b"b")) == (5, 6)
    assert states.use(b"a") == 5
    assert keep(states, b"c") == 6
    assert (b"a" in states, b"b" in states, b"c" in states) == (True, False, True)


def test_a_passing_state_is_replaced_unless_another_sequence_used_it():
    states = KeptStates(3)
    assert keep(states, b"a", is_passing=True) == 0
    assert keep(states, b"b", is_passing=True, replaced=b"a") == 0
    states.use(b"b")
    assert keep(states, b"c", is_passing=True, replaced=b"b") == 1
    assert b"a" not in states
    assert (states.use(b"b"), states.use(b"c")) == (0, 1)


def test_places_of_states_that_are_being_computed_are_not_taken():
    states = KeptStates(2)
    first, second = states.take(), states.take()
    assert (first, second, states.take()) == (0, 1, None)
    states.give_back(0)
    assert states.take() == 0


def test_a_state_is_forgotten_with_its_block():
    states = KeptStates(1)
    keep(states, b"a")
    states.forget(b"a")
    states.forget(b"never kept")
    assert b"a" not in states
    assert keep(states, b"b") == 0


def test_nothing_is_kept_without_places():
    states = KeptStates()
    assert states.take() is None
    states.forget(b"a")
