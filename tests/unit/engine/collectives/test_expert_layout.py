"""Layouts of experts on ranks: what all have, and some that can be checked by hand."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.engine.collectives.expert_layout import TOLERANCE, _Ranks, balanced_layout, rank_loads
from stoker.model.expert_placement import Layout, first_layout
from stoker.model.feed_forwards import Experts


@st.composite
def problems(draw: st.DrawFn) -> tuple[Layout, list[int], list[int]]:
    """A layout, and the loads of two windows."""
    num_ranks, places = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    count = draw(st.integers(places, num_ranks * places))
    placement = draw(st.sampled_from(["linear", "round_robin"]))
    block = Experts(count=count, per_token=1, width=1, placement=placement, redundant=num_ranks * places - count)
    loads = st.lists(st.integers(0, 3) | st.integers(0, 10**6), min_size=count, max_size=count)
    return first_layout(block, num_ranks), draw(loads), draw(loads)


@settings(deadline=None)
@given(problems())
def test_every_rank_has_its_places_and_every_expert_has_one(problem: tuple[Layout, list[int], list[int]]) -> None:
    layout, *windows = problem
    for loads in windows:
        before, layout = layout, balanced_layout(layout, loads)
        assert {expert for held in layout for expert in held} == set(range(len(loads)))
        assert [len(held) for held in layout] == [len(held) for held in before]
        assert all(len(set(held)) == len(held) for held in layout)  # no two copies in one rank
        assert max(rank_loads(layout, loads)) <= max(rank_loads(before, loads)) * (1 + 1e-9)
        assert balanced_layout(before, loads) == layout
        for had, has in zip(before, layout, strict=True):  # what stays keeps its place
            assert all(has.index(expert) == had.index(expert) for expert in set(had) & set(has))


@settings(deadline=None)
@given(problems())
def test_what_is_balanced_stays(problem: tuple[Layout, list[int], list[int]]) -> None:
    layout, loads, _ = problem
    balanced = balanced_layout(layout, loads)
    again = balanced_layout(balanced, loads)
    assert max(rank_loads(balanced, loads)) <= max(rank_loads(again, loads)) * TOLERANCE


def test_two_loaded_experts_of_one_rank_are_divided_by_one_exchange() -> None:
    assert balanced_layout(((0, 1), (2, 3)), [8, 8, 1, 1]) == ((2, 1), (0, 3))


def test_an_even_load_moves_nothing() -> None:
    present = ((3, 0), (1, 2))
    assert balanced_layout(present, [5, 5, 5, 5]) == present
    assert balanced_layout(present, [0, 0, 0, 0]) == present


def test_the_expert_with_most_tokens_has_the_copies() -> None:
    layout = balanced_layout(((0, 1, 2), (2, 3, 0)), [10, 60, 10, 20])
    assert Counter(expert for held in layout for expert in held) == {0: 1, 1: 2, 2: 1, 3: 2}
    assert rank_loads(layout, [10, 60, 10, 20]) == [50, 50]


def test_an_exchange_makes_room_for_a_copy_whose_rank_has_the_expert() -> None:
    """Two ranks of three places, experts 0 to 3: the last copy finds a place only where its expert is already."""
    loads = [9, 8, 1, 0]
    for present in (((0, 1, 2), (1, 2, 3)), ((0, 1, 3), (0, 1, 2))):
        layout = balanced_layout(present, loads)
        assert all(len(set(held)) == 3 for held in layout)
        assert max(rank_loads(layout, loads)) <= max(rank_loads(present, loads))


@given(st.lists(st.integers(0, 50), min_size=12, max_size=12), st.integers(1, 5))
def test_the_best_exchange_is_found_without_all_pairs(loads: list[int], common: int) -> None:
    held = [{expert: float(loads[expert]) for expert in experts} for experts in (range(7), range(7 - common, 12))]
    ranks = _Ranks(tuple(map(tuple, held)))
    ranks._held = held
    high, low = sorted((0, 1), key=lambda rank: -sum(held[rank].values()))
    difference = sum(held[high].values()) - sum(held[low].values())
    found = list(ranks._exchanges(high, low, difference))
    pairs = [(one, other) for one in held[high] for other in held[low] if one not in held[low]]
    pairs = [(one, other) for one, other in pairs if other not in held[high]]
    assert {(one, other) for _, one, other in found} <= set(pairs)
    best = min(abs(difference - 2 * (loads[one] - loads[other])) for one, other in pairs)
    assert min(left for left, _, _ in found) == best
    assert len(found) <= 2 * len(held[high])
