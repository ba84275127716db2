from __future__ import annotations

import random

import numpy as np
import pytest

from stoker.engine.spec_decode import prompt_lookup
from stoker.engine.spec_decode.prompt_lookup import PromptLookup
from stoker.engine.spec_decode.step_times import StepTimes

CHEAP = {1: 1.0, 100: 1.01}
DEAR = {1: 1.0, 100: 100.0}


def lookup(measured: dict[int, float] | None = None, num_slots: int = 4, **settings: int) -> PromptLookup:
    times = StepTimes()
    times.measure(CHEAP if measured is None else measured)
    return PromptLookup(num_slots, 1000, times, **({"max_tokens": 6} | settings))


def follow(drafter: PromptLookup, slot: int, length: int, *token_ids: int) -> int:
    """The sequence in the slot goes on with these tokens. Returns its length."""
    for token_id in token_ids:
        length += 1
        drafter.follow(np.array([slot]), np.array([length], np.int32), np.array([token_id], np.int32))
    return length


def drafted(drafter: PromptLookup, slot: int, length: int, room: int = 6) -> list[int]:
    (count,) = drafter.counts(np.array([slot]), np.array([room], np.int32)).tolist()
    return drafter.drafts(slot, length, count) if count else []


def test_the_prompt_says_what_follows() -> None:
    drafter = lookup()
    prompt = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 90, 91]
    drafter.admit(1, prompt)
    assert drafted(drafter, 1, 12) == []
    length = follow(drafter, 1, 12, 11, 12, 13)
    assert drafted(drafter, 1, length) == [14, 15, 16, 17, 18, 19]
    length = follow(drafter, 1, length, 14, 15)
    assert drafted(drafter, 1, length)[:3] == [16, 17, 18]


def test_the_longest_agreement_wins_and_of_equal_ones_the_last() -> None:
    drafter = lookup()
    drafter.admit(0, [1, 2, 3, 50, 9, 2, 3, 60, 8, 2, 3, 70, 7])
    length = follow(drafter, 0, 13, 1, 2, 3)
    assert drafted(drafter, 0, length)[0] == 50
    drafter.admit(0, [9, 2, 3, 60, 8, 2, 3, 70, 7])
    assert drafted(drafter, 0, follow(drafter, 0, 9, 2, 3))[0] == 70


@pytest.mark.parametrize(("shortest", "found"), [(1, True), (2, True), (3, True), (4, False)])
def test_a_number_of_tokens_must_agree(shortest: int, found: bool) -> None:
    drafter = lookup(shortest=shortest)
    drafter.admit(0, [5, 1, 2, 3, 4, 6])
    assert bool(drafted(drafter, 0, follow(drafter, 0, 6, 1, 2, 3))) == found


def test_a_number_of_tokens_is_compared() -> None:
    """Of two tokens the last place is followed, though more agree at the first."""
    drafter = lookup(longest=2)
    drafter.admit(0, [1, 2, 3, 50, 9, 2, 3, 60, 7, 1, 2, 3])
    assert drafted(drafter, 0, 12)[0] == 60


def test_a_line_that_is_edited_does_not_end_the_copy() -> None:
    """After a token that is another one, the place is tried once more; after two, it is left."""
    drafter = lookup()
    drafter.admit(0, [*range(10, 40), 5])
    length = follow(drafter, 0, 31, *range(10, 20), 99)  # in the place of 20
    assert drafted(drafter, 0, length)[:1] == [21]
    length = follow(drafter, 0, length, 21, 22)
    assert drafted(drafter, 0, length)[:3] == [23, 24, 25]
    length = follow(drafter, 0, length, 98, 97)
    assert drafted(drafter, 0, length) == []


def test_a_repetition_is_drafted_beyond_the_end() -> None:
    drafter = lookup()
    drafter.admit(0, [7, 8, 9, 1, 2, 1, 2])
    assert drafted(drafter, 0, 7) == [1, 2, 1, 2, 1, 2]


def test_tokens_that_were_not_sampled_belong_to_the_text() -> None:
    drafter = lookup()
    drafter.admit(0, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    drafter.extend(0, [2, 3, 4], 12)
    assert drafted(drafter, 0, 12)[:3] == [5, 6, 7]


def test_another_sequence_in_the_slot_has_nothing_of_the_one_before() -> None:
    drafter = lookup()
    drafter.admit(0, [1, 2, 3, 4, 1, 2])
    assert drafted(drafter, 0, 6)
    drafter.admit(0, [1, 2, 9])
    assert drafted(drafter, 0, 3) == []
    assert drafted(drafter, 0, follow(drafter, 0, 3, 3, 4)) == []


def test_drafts_that_do_not_pay_are_not_made() -> None:
    drafter = lookup(DEAR)
    drafter.admit(0, [1, 2, 3, 4, 1, 2])
    assert drafted(drafter, 0, 6) == []


def test_no_more_than_there_is_room_for() -> None:
    drafter = lookup()
    drafter.admit(0, [*range(1, 20), 1, 2, 3])
    assert [len(drafted(drafter, 0, 22, room)) for room in (0, 1, 4, 6)] == [0, 1, 4, 6]


def test_the_most_probable_tokens_of_all_sequences_are_drafted() -> None:
    """Where a token costs a fifth of a step, a short agreement gets fewer drafts than a long one."""
    drafter = lookup({1: 1.0, 101: 21.0})
    text = list(range(10, 60))
    drafter.admit(0, [*text, 1, *text[:30]])
    drafter.admit(1, [*text, 1, 12, 13])
    drafter.admit(2, [1, 2, 3])
    counts = drafter.counts(np.array([0, 1, 2]), np.array([6, 6, 6], np.int32)).tolist()
    assert counts[0] > counts[1]
    assert counts[2] == 0


def test_a_loaded_engine_drafts_less() -> None:
    """A step that takes as long for any number of tokens up to 8, and then in proportion to them."""
    drafter = lookup({1: 1.0, 8: 1.0, 16: 2.0, 128: 16.0}, num_slots=16)
    text = list(range(10, 60))
    for slot in range(16):
        drafter.admit(slot, [*text, 1, *text[:12]])
    every = np.arange(16)
    drafts = [int(drafter.counts(every[:rows], np.full(rows, 6, np.int32)).sum()) for rows in (1, 4, 16)]
    assert drafts[0] == 6
    assert 0 < drafts[1] <= 4
    assert drafts[2] == 0


def test_a_step_has_none_now_and_then_if_all_have_drafts() -> None:
    """Else nothing would say what a step takes without."""
    drafter = lookup()
    drafter.admit(0, [1, 2, 3, 4, 1, 2])
    for _ in range(128):
        assert drafted(drafter, 0, 6)
        drafter.record_step(1, 6, 1.0)
    assert drafted(drafter, 0, 6) == []
    drafter.record_step(1, 0, 1.0)
    assert drafted(drafter, 0, 6)


def test_most_sequences_without_a_place_wait_for_a_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets its turn: after ten tokens that were seen before, all have found their place."""
    monkeypatch.setattr(prompt_lookup, "_MOST_SEARCHED", 400)
    drafter = lookup(num_slots=40)
    every, text = np.arange(40), np.arange(100, 140, dtype=np.int32)
    for slot in range(40):
        drafter.admit(slot, [*text.tolist(), 1])
    lengths = np.full(40, 41, np.int32)
    for token_id in text[:10]:
        lengths += 1
        drafter.follow(every, lengths, np.full(40, token_id, np.int32))
    assert (drafter.counts(every[:1], np.array([6], np.int32)) > 0).all()
    assert sum(bool(drafted(drafter, slot, 51)) for slot in range(40)) == 40


def test_what_is_found_is_what_a_search_of_all_places_finds() -> None:
    numbers = random.Random(5)
    for _ in range(300):
        tokens = [numbers.randrange(4) for _ in range(numbers.randrange(2, 60))]
        drafter = lookup(longest=5, shortest=1)
        drafter.admit(0, tokens)
        best = (0, -1)
        for place in range(1, len(tokens)):
            agreeing = 0
            while agreeing < min(5, place) and tokens[place - 1 - agreeing] == tokens[-1 - agreeing]:
                agreeing += 1
            best = max(best, (agreeing, place))
        expected = [tokens[best[1]]] if best[0] else []
        assert drafted(drafter, 0, len(tokens), room=1) == expected, tokens
