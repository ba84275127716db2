"""The ring of earlier answers and its index."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stoker.config.auto_values import past_output_bytes, past_output_places
from stoker.engine.spec_decode.past_outputs import END, LEAST, NONE, PastOutputs

FIRST = 1000  # place of the ring's first token


def ring(capacity: int = 100, longest: int = 8) -> PastOutputs:
    return PastOutputs(np.zeros(capacity + 1, np.int32), FIRST, longest)


def add(past: PastOutputs, *token_ids: int) -> None:
    past.add(np.array(token_ids, np.int32))


def after(past: PastOutputs, *last: int, count: int = 3) -> tuple[list[int], int]:
    """What follows these tokens, and how many of them agree."""
    ends = np.full((1, past.num_compared), NONE, np.int32)
    ends[0, max(0, past.num_compared - len(last)) :] = last[-past.num_compared :]
    places, matched = past.find(ends)
    return past.after(int(places[0]), count) if places[0] >= 0 else [], int(matched[0])


def test_what_followed_the_same_tokens_is_found() -> None:
    past = ring()
    add(past, *range(10, 30))
    assert after(past, 9, 13, 14, 15, 16) == ([17, 18, 19], 4)
    assert after(past, 11, 12, 13, 14, 15, 16) == ([17, 18, 19], 6)
    assert after(past, *range(10, 25)) == ([25, 26, 27], 8)  # at most 8 are compared
    assert after(past, 14, 15) == ([], 0)  # two are too few
    assert after(past, 13, 14, 15, 17) == ([], 0)


def test_the_last_of_several_places_is_found_and_an_answer_ends() -> None:
    past = ring()
    add(past, 1, 2, 3, 4, 50, 51)
    add(past, 1, 2, 3, 4, 60, 61)
    assert after(past, 1, 2, 3, 4) == ([60, 61], 4)
    assert after(past, 2, 3, 4, 60) == ([61], 4)
    assert after(past, 3, 4, 60, 61) == ([], 0)  # nothing follows
    assert after(past, 3, 4, 50, 51) == ([], 0)


def test_tokens_do_not_agree_across_the_begin_of_an_answer() -> None:
    past = ring()
    add(past, 7, 8, 9, 10, 11)
    add(past, 1, 2, 3, 4, 5, 6)
    assert after(past, 9, 10, 11, 1, 2, 3, 4) == ([5, 6], 4)


def test_the_oldest_answers_are_overwritten() -> None:
    past = ring(capacity=40)
    for first in (100, 200, 300, 400):
        add(past, *range(first, first + 12))
    assert after(past, *range(400, 405)) == ([405, 406, 407], 5)
    assert after(past, *range(300, 305)) == ([305, 306, 307], 5)
    assert after(past, *range(100, 105)) == ([], 0)


def test_of_a_long_answer_the_end_is_kept_and_a_short_one_is_not() -> None:
    past = ring(capacity=20)
    add(past, *range(100))
    assert after(past, 90, 91, 92, 93) == ([94, 95, 96], 4)
    assert after(past, 50, 51, 52, 53) == ([], 0)
    short = ring()
    add(short, *range(LEAST))
    add(short)
    assert after(short, *range(LEAST)) == ([], 0)


def test_what_is_found_is_true_for_random_texts_of_few_tokens() -> None:
    """With three different tokens many hashes and many runs are equal. A naive search says what may be found."""
    numbers = random.Random(0)
    past, kept = ring(capacity=60, longest=6), list[int]()
    token_ids = past._token_ids
    for _ in range(300):
        add(past, *(numbers.randrange(3) for _ in range(numbers.randrange(25))))
        kept = token_ids.tolist()
        last = [numbers.randrange(3) for _ in range(8)]
        found, matched = after(past, *last, count=1)
        if found:
            assert LEAST <= matched <= 6
            run = last[-matched:]
            places = [at for at in range(len(kept) - matched) if kept[at : at + matched] == run]
            assert found[0] in [kept[at + matched] for at in places]
            assert END not in found
    assert len(kept) == 61


def test_rows_are_looked_up_together() -> None:
    past = ring()
    add(past, *range(10, 30))
    ends = np.array(
        [[0, 0, 0, 0, 20, 21, 22, 23], [0, 1, 2, 3, 4, 5, 6, 7], [12, 13, 14, 15, 16, 17, 18, 19]], np.int32
    )
    places, matched = past.find(ends)
    assert places.tolist() == [FIRST + 14, -1, FIRST + 10]
    assert matched.tolist() == [4, 0, 8]


@pytest.mark.parametrize("tokens", [1, 3, 1000, 1 << 16])
def test_the_plan_counts_the_memory_of_the_ring_and_of_its_index(tokens: int) -> None:
    token_ids = np.zeros(tokens + 1, np.int32)
    past = PastOutputs(token_ids, FIRST, 8)
    assert past_output_bytes(tokens) == token_ids.nbytes + past._last.nbytes
    assert 2 * tokens <= past_output_places(tokens) < 4 * tokens + 1
    assert past_output_bytes(0) == 0
