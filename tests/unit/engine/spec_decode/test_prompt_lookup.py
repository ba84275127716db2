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


def announced(drafter: PromptLookup, slot: int, prompt: list[int], predicted: list[int], *, shared: bool = True) -> int:
    drafter.announce(slot, len(prompt), predicted, is_shared=shared)
    drafter.admit(slot, prompt)
    return len(prompt)


def test_a_prediction_is_followed_from_its_beginning_and_before_the_own_text() -> None:
    drafter = lookup()
    length = announced(drafter, 1, [1, 2, 3, 4, 1, 2], [*range(50, 60)])
    assert drafted(drafter, 1, length) == [50, 51, 52, 53, 54, 55]
    assert drafter.is_predicted(1)
    length = follow(drafter, 1, length, *range(50, 56))
    assert drafted(drafter, 1, length) == [56, 57, 58, 59]  # no further than it goes
    length = follow(drafter, 1, length, *range(56, 60), 3)
    assert drafted(drafter, 1, length) == []


def test_a_prediction_is_found_again_after_an_edit_at_the_next_of_several_places() -> None:
    drafter = lookup()
    predicted = [20, 21, 22, 30, 31, 32, 20, 21, 40, 41, 20, 21, 50, 51]
    length = announced(drafter, 0, [1, 2, 3], predicted)
    length = follow(drafter, 0, length, 20, 21, 22, 30, 31, 32, 99, 98, 97)
    assert drafted(drafter, 0, length) == []
    length = follow(drafter, 0, length, 20, 21)
    assert drafted(drafter, 0, length)[:2] == [40, 41]
    assert drafter.is_predicted(0)


def test_more_tokens_that_agree_in_the_own_text_win_over_the_prediction() -> None:
    drafter = lookup()
    length = announced(drafter, 0, [5, 6, 7, 8, 90], [1, 7, 8, 70, 71])
    length = follow(drafter, 0, length, 99, 98, 7, 8)
    assert drafted(drafter, 0, length)[:2] == [70, 71]
    length = follow(drafter, 0, length, 99, 98, 97, 5, 6, 7, 8)
    assert drafted(drafter, 0, length)[:1] == [90]
    assert not drafter.is_predicted(0)


def test_a_sequence_that_is_admitted_again_follows_its_prediction_where_it_was() -> None:
    drafter = lookup()
    prompt, predicted = [1, 2, 3], [*range(20, 40)]
    drafter.announce(2, len(prompt), predicted, is_shared=True)
    drafter.admit(2, [*prompt, *range(20, 30)])
    assert drafted(drafter, 2, 13)[:3] == [30, 31, 32]
    drafter.announce(2, 3, [], is_shared=True)  # another sequence, without a prediction
    drafter.admit(2, prompt)
    assert drafted(drafter, 2, follow(drafter, 2, 3, 21, 22)) == []


def test_earlier_answers_are_followed_where_the_own_text_has_none_as_long() -> None:
    drafter = lookup(past_tokens=100)
    length = announced(drafter, 0, [1, 2, 3], [])
    length = follow(drafter, 0, length, *range(20, 40))
    drafter.release(0, length)
    length = announced(drafter, 1, [4, 5, 23, 60, 61], [])
    length = follow(drafter, 1, length, 21, 22, 23, 24)
    assert drafted(drafter, 1, length) == [25, 26, 27, 28, 29, 30]
    assert not drafter.is_predicted(1)
    length = follow(drafter, 1, length, *range(25, 38))
    assert drafted(drafter, 1, length) == [38, 39]  # the answer ended there
    length = follow(drafter, 1, length, 38, 39, 9)
    assert drafted(drafter, 1, length) == []
    # more tokens agree in the own text
    length = announced(drafter, 2, [19, 20, 21, 22, 23, 70, 71, 3], [])
    length = follow(drafter, 2, length, 19, 20, 21, 22, 23)
    assert drafted(drafter, 2, length)[:2] == [70, 71]


def test_earlier_answers_can_be_forgotten() -> None:
    drafter = lookup(past_tokens=100)
    lookup().forget()  # none are kept
    for forgets in (True, False):
        drafter.release(0, follow(drafter, 0, announced(drafter, 0, [1, 2, 3], []), *range(20, 40)))
        if forgets:
            drafter.forget()
        length = follow(drafter, 1, announced(drafter, 1, [5], []), *range(25, 31))
        assert (drafted(drafter, 1, length) == []) == forgets


def test_prompts_are_in_no_earlier_answer() -> None:
    drafter = lookup(past_tokens=100)
    drafter.release(0, follow(drafter, 0, announced(drafter, 0, [*range(20, 40)], []), 1, 2))
    assert drafted(drafter, 1, follow(drafter, 1, announced(drafter, 1, [5], []), *range(25, 31))) == []


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False)])
def test_answers_are_shared_only_between_sequences_that_share(first: bool, second: bool) -> None:
    drafter = lookup(past_tokens=100)
    length = announced(drafter, 0, [1, 2, 3], [], shared=first)
    drafter.release(0, follow(drafter, 0, length, *range(20, 40)))
    length = announced(drafter, 0, [5], [], shared=second)
    assert drafted(drafter, 0, follow(drafter, 0, length, *range(25, 31))) == []


def test_without_room_for_earlier_answers_nothing_is_kept() -> None:
    drafter = lookup()
    drafter.release(0, follow(drafter, 0, announced(drafter, 0, [1, 2, 3], []), *range(20, 40)))
    assert drafted(drafter, 0, follow(drafter, 0, announced(drafter, 0, [5], []), *range(25, 31))) == []


def test_many_sequences_with_all_kinds_of_texts_draft_what_they_follow() -> None:
    """Every draft is a run of a text that the sequence may read, whatever happened in the other slots."""
    numbers = random.Random(1)
    drafter, vocabulary = lookup(num_slots=6, past_tokens=300), 5
    texts: dict[int, list[int]] = {}
    predictions: dict[int, list[int]] = {}
    answers: list[list[int]] = []
    begins: dict[int, int] = {}
    shares: dict[int, bool] = {}
    num_drafted = 0
    for _ in range(1500):
        slot = numbers.randrange(6)
        if slot not in texts or numbers.random() < 0.02:
            if slot in texts:
                drafter.release(slot, len(texts[slot]))
                if shares[slot]:
                    answers.append(texts[slot][begins[slot] :])
            texts[slot] = [numbers.randrange(vocabulary) for _ in range(numbers.randrange(1, 20))]
            predictions[slot] = [numbers.randrange(vocabulary) for _ in range(numbers.choice([0, 30]))]
            begins[slot], shares[slot] = len(texts[slot]), numbers.random() < 0.7
            announced(drafter, slot, texts[slot], predictions[slot], shared=shares[slot])
        live = sorted(texts)
        token_ids = [numbers.randrange(vocabulary) for _ in live]
        for each, token_id in zip(live, token_ids, strict=True):
            texts[each].append(token_id)
        lengths = np.array([len(texts[each]) for each in live], np.int32)
        drafter.follow(np.array(live), lengths, np.array(token_ids, np.int32))
        counts = drafter.counts(np.array(live), np.full(len(live), 6, np.int32)).tolist()
        for each, count in zip(live, counts, strict=True):
            found = drafter.drafts(each, len(texts[each]), count) if count else []
            num_drafted += len(found)
            readable = [texts[each] + found, predictions[each], *(answers if shares[each] else [])]
            shown = "".join(map(str, found))
            assert any(shown in "".join(map(str, text)) for text in readable)
    assert num_drafted > 1000
