from __future__ import annotations

from itertools import pairwise

import pytest

from stoker.engine.runner.cuda.buckets import Buckets, mixed_buckets
from stoker.engine.runner.step_shape import StepFlag, StepShape


@pytest.mark.parametrize("most", [1, 63, 64, 65, 100, 2048, 8192, 10_000])
def test_mixed_buckets_waste_a_third_at_most(most: int):
    sizes = mixed_buckets(most)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == most
    assert all(larger <= 1.5 * size for size, larger in pairwise(sizes))


def test_a_step_gets_the_least_shape_that_holds_it():
    buckets = Buckets((1, 2, 4, 8), 8, 128)
    for rows, expected in ((1, 1), (2, 2), (3, 4), (5, 8), (8, 8)):
        assert buckets.shape(rows, rows, most=1) == StepShape(expected, expected, 1)
    found = buckets.shape(65, 3, most=40, flags=StepFlag.FULL_SAMPLER)
    assert found == StepShape(96, 8, 0, StepFlag.FULL_SAMPLER)
    assert buckets.shape(128, 8, most=16).num_tokens == 128


def test_what_no_bucket_holds_is_not_padded():
    buckets = Buckets((1, 2), 8, 128)
    assert buckets.shape(5, 5, most=1).num_rows == 5
    without = Buckets((), 8, 128)
    assert without.shape(70, 2, most=69) == StepShape(70, 2, 0)
    assert without.all_shapes() == []


def test_every_step_of_a_bucket_finds_its_shape_among_those_captured():
    buckets = Buckets((1, 2, 4, 6), 6, 200)
    shapes = buckets.all_shapes()
    assert len(set(shapes)) == len(shapes)
    assert shapes[0] == StepShape(6, 6, 1)  # the largest first: the others fit its memory
    for flags in (0, StepFlag.FULL_SAMPLER):
        for rows in range(1, 7):
            assert buckets.shape(rows, rows, most=1, flags=flags) in shapes
        for tokens in range(3, 201):
            assert buckets.shape(tokens, 2, most=tokens - 1, flags=flags) in shapes


def test_decode_steps_have_one_of_several_numbers_of_tokens_in_each_row():
    """Four rows of three tokens are padded to four rows; six rows would exceed the 16 tokens of a step."""
    buckets = Buckets((1, 2, 4, 6), 6, 16, tokens_per_row=(1, 3))
    shapes = buckets.all_shapes()
    assert len(set(shapes)) == len(shapes)
    assert buckets.shape(9, 3, most=3) == StepShape(12, 4, 3) in shapes
    assert buckets.shape(15, 5, most=3) == StepShape(15, 5, 3) not in shapes
    for num_tokens, rows, most in ((4, 2, 2), (9, 3, 4)):  # another number in all rows, and rows that differ
        assert buckets.shape(num_tokens, rows, most=most) == StepShape(16, 6, 0) in shapes


def test_steps_with_a_feature_have_shapes_after_those_without():
    feature_flags = (StepFlag.MIX, StepFlag.ROPE_POSITIONS)
    plain, buckets = Buckets((1, 2), 2, 64), Buckets((1, 2), 2, 64, feature_flags=feature_flags)
    shapes = buckets.all_shapes()
    assert shapes[: len(shapes) // 3] == plain.all_shapes()
    for flags in (StepFlag.MIX, StepFlag.ROPE_POSITIONS | StepFlag.FULL_SAMPLER):
        assert buckets.shape(2, 2, most=1, flags=flags) == StepShape(2, 2, 1, flags) in shapes
