from __future__ import annotations

from itertools import pairwise

import pytest

from stoker.engine.runner.cuda.buckets import Buckets, StepShape, mixed_buckets


@pytest.mark.parametrize("most", [1, 63, 64, 65, 100, 2048, 8192, 10_000])
def test_mixed_buckets_waste_a_third_at_most(most: int):
    sizes = mixed_buckets(most)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == most
    assert all(larger <= 1.5 * size for size, larger in pairwise(sizes))


def test_a_step_gets_the_least_shape_that_holds_it():
    buckets = Buckets((1, 2, 4, 8), 8, 128)
    for rows, expected in ((1, 1), (2, 2), (3, 4), (5, 8), (8, 8)):
        shape = buckets.shape(rows, rows, is_decode=True, is_fast_path=True)
        assert shape == StepShape(expected, expected, is_decode=True, is_fast_path=True)
    assert buckets.shape(65, 3, is_decode=False, is_fast_path=False) == StepShape(
        96, 8, is_decode=False, is_fast_path=False
    )
    assert buckets.shape(128, 8, is_decode=False, is_fast_path=True).num_tokens == 128


def test_what_no_bucket_holds_is_not_padded():
    buckets = Buckets((1, 2), 8, 128)
    assert buckets.shape(5, 5, is_decode=True, is_fast_path=True).num_rows == 5
    without = Buckets((), 8, 128)
    assert without.shape(70, 2, is_decode=False, is_fast_path=True) == StepShape(
        70, 2, is_decode=False, is_fast_path=True
    )
    assert without.all_shapes() == []


def test_every_step_of_a_bucket_finds_its_shape_among_those_captured():
    buckets = Buckets((1, 2, 4, 6), 6, 200)
    shapes = buckets.all_shapes()
    assert len(set(shapes)) == len(shapes)
    assert shapes[0] == StepShape(
        6, 6, is_decode=True, is_fast_path=True
    )  # the largest first: the others fit its memory
    for is_fast_path in (True, False):
        for rows in range(1, 7):
            assert buckets.shape(rows, rows, is_decode=True, is_fast_path=is_fast_path) in shapes
        for tokens in range(2, 201):
            assert buckets.shape(tokens, 2, is_decode=False, is_fast_path=is_fast_path) in shapes
