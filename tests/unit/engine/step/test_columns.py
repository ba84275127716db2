"""Columns of results and log-probabilities: what is written can be read, what does not fit is an error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest

from stoker.engine.api import TokenLogprobs, Vectors
from stoker.engine.step import StepResult, plan_without_rows
from stoker.engine.step.columns import (
    ColumnError,
    int_bytes,
    read_logprobs,
    read_result,
    read_vectors,
    write_logprobs,
    write_result,
)


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def entry(token_id: int, *others: int) -> TokenLogprobs:
    return TokenLogprobs([token_id, *others], [-0.1 * token_id] * (1 + len(others)), 1 + len(others))


def through_msgpack(parts: list[Any]) -> list[Any]:
    return msgpack.unpackb(msgpack.packb(parts))


def test_a_result_that_is_read_is_the_one_that_was_written():
    result = StepResult(
        token_ids=ids(9, 8, 7, 3),
        logprobs={1: entry(8), 3: entry(3, 4, 5)},
        prompt_logprobs={0: [entry(1), entry(2, 3)], 2: [entry(4)]},
        errors={2: "NaN"},
        complete=[1],
        forced={0: [5, 6]},
        vectors={
            1: {"token_embed": Vectors(3, np.arange(6, dtype="<f4").tobytes()), "sparse": Vectors(1, bytes(8))},
            2: {"sparse": Vectors(1, bytes(4))},
            3: {"token_embed": Vectors(2, b"")},
        },
    )
    found = read_result(through_msgpack(write_result(result)))
    assert found.token_ids.tolist() == [9, 8, 7, 3]
    assert replace(found, token_ids=0) == replace(result, token_ids=0)
    drafted = read_result(through_msgpack(write_result(replace(result, num_valid=ids(3, 1, 0)))))
    plan = replace(plan_without_rows(), slots=ids(0, 1, 2), num_outputs=ids(4, 0, 1))
    assert drafted.rows(plan).tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(("width", "length"), [(0, 0), (-1, 4), (3, 16), (1, 5), (1, -4)])
def test_vectors_have_whole_rows(width: int, length: int):
    with pytest.raises(ColumnError):
        read_vectors([("embed", width, int_bytes([0]), int_bytes([length]), bytes(max(0, length)))])


def test_positions_without_log_probabilities_are_kept():
    assert read_logprobs(*write_logprobs([None, entry(4, 2), None])) == [None, entry(4, 2), None]


@pytest.mark.parametrize(
    ("place", "data", "error"),
    [
        (0, b"123", "ids is not a column of 4-byte numbers"),
        (1, bytes(8), "do not fit together"),
        (2, int_bytes([-2, 5]), "do not fit together"),
        (2, int_bytes([1, 1]), "do not add up"),
        (3, int_bytes([1]), "do not fit together"),
    ],
)
def test_columns_that_do_not_fit_are_an_error(place: int, data: bytes, error: str):
    columns = write_logprobs([entry(4, 2), entry(1)])
    columns[place] = data
    with pytest.raises(ColumnError, match=error):
        read_logprobs(*columns)
