from __future__ import annotations

import pytest
from tests.unit.config.plan.shapes import NATIVE

from stoker.model.cache_groups import (
    MAX_GROUPS,
    Place,
    View,
    all_in_one,
    blocks_of_sequence,
    cache_groups,
    longest_sequence,
    model_cache_groups,
    one_group,
)
from stoker.model.read import read_config

GEMMA = ([512] * 5 + [None]) * 4 + [512] * 2  # 22 layers with a window, 4 without


def test_layers_of_one_kind_are_one_group():
    assert cache_groups([None] * 3) == all_in_one(3)
    assert cache_groups([40, 40]).windows == (40,)


def test_a_model_without_attention_has_a_group_without_layers():
    assert cache_groups([]) == all_in_one(0)
    assert (all_in_one(0).num_groups, all_in_one(0).num_planes, all_in_one(0).windows) == (1, 0, (None,))


def test_all_groups_have_the_same_size():
    groups = cache_groups(GEMMA)
    assert (groups.num_planes, groups.windows) == (4, (512,) * 6 + (None,))
    counts = [groups.layers.count(group) for group in range(groups.num_groups)]
    assert counts == [4, 4, 4, 4, 4, 2, 4]
    assert all(groups.windows[group] == window for group, window in zip(groups.layers, GEMMA, strict=True))


def test_layers_of_a_group_have_different_planes():
    groups = cache_groups(GEMMA)
    places = set(zip(groups.layers, groups.planes, strict=True))
    assert len(places) == len(GEMMA)
    assert max(groups.planes) == groups.num_planes - 1


def test_narrow_layers_share_places_of_wide_ones():
    """Gemma 4 31B: 50 layers with a window, 10 without and with half as much for each token."""
    windows = [*([1024] * 5), None] * 10
    groups = cache_groups(windows, [1 if window else 2 for window in windows])
    assert (groups.num_planes, groups.windows) == (10, (1024,) * 5 + (None,))  # 60 places, of which 55 are used
    assert len(set(zip(groups.layers, groups.places, strict=True))) == len(windows)
    assert groups.views == (*map(View, range(6)), View(5, 2, 0), View(5, 2, 1))
    assert groups.view_of_layer[:6] == (0, 0, 0, 0, 0, 6)
    assert groups.view_of_layer[11] == 7


def test_layers_of_several_widths_in_one_group_have_places_of_their_own():
    groups = one_group([None] * 5, [1, 2, 2, 1, 2])
    assert groups.num_planes == 4
    assert groups.places == (Place(0), Place(1, 2, 0), Place(1, 2, 1), Place(2), Place(3, 2, 0))


def test_layers_that_share_keys_have_the_place_of_their_source():
    """Gemma 4 E2B: 12 layers with a window and 3 without keep something, the other 20 read two of them."""
    spec, _ = read_config(NATIVE["gemma-4-e2b"][0])
    groups = model_cache_groups(spec, 131072, is_hybrid=True)
    assert (groups.num_planes, groups.windows) == (3, (512, 512, None))
    assert len({*zip(groups.layers[:15], groups.places[:15], strict=True)}) == 15
    for index in range(15, 35):
        source = 14 if spec.windows[index] is None else 13
        views = groups.layers, groups.places, groups.view_of_layer
        assert all(of_layer[index] == of_layer[source] for of_layer in views)


@pytest.mark.parametrize("windows", [[8] * 31 + [None], [None] * 39 + [8], [1, 2, 3, None] * 9, [*range(1, 9)]])
def test_there_are_never_many_groups(windows: list[int | None]):
    assert cache_groups(windows).num_groups <= MAX_GROUPS


def test_with_too_many_kinds_all_keep_what_the_longest_window_needs():
    assert cache_groups([*range(1, 12)]) == one_group([*range(1, 12)])
    assert one_group([3, 9, 5]).windows == (9,)
    assert one_group([3, None]).windows == (None,)


def test_the_longest_sequence_needs_no_more_blocks_than_there_are() -> None:
    """Of a window at most the window and two chunks, of 8 + 2 * 4 tokens in blocks of 4: 6 blocks with the rims."""
    for windows in ((None,), (None, 8), (None, 8, 8, 8)):
        for num_blocks in range(40):
            longest = longest_sequence(windows, num_blocks, 4, 4, 1000)
            assert blocks_of_sequence(windows, longest, 4, 4) <= num_blocks
            assert blocks_of_sequence(windows, longest + 1, 4, 4) > num_blocks
    assert longest_sequence((None, 8, 8, 8), 20 + 3 * 6, 4, 4, 1000) == 80
    assert longest_sequence((None, 8, 8, 8), 20 + 3 * 6, 4, None, 1000) == 36  # prompts are computed whole
    assert longest_sequence((8, 8), 12, 4, 4, 1001) == 1001
