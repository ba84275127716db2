from __future__ import annotations

import numpy as np
import pytest

from stoker.engine.spec_decode.acceptance import Acceptance


def slots(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def matched(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_a_longer_context_is_more_often_right_at_first() -> None:
    found = Acceptance(1).survival(slots(0), matched(0), 18)[0]
    likely = found[1:] / found[:-1]
    assert np.all(np.diff(likely) >= -1e-9)
    assert likely[-1] > 0.9 > 0.5 > found[0]


def test_a_draft_survives_only_if_all_before_it_do() -> None:
    found = Acceptance(2).survival(slots(0, 1), matched(3, 20), 8)
    assert found.shape == (2, 8)
    assert np.all(np.diff(found, axis=1) < 0)
    assert np.all((found > 0) & (found < 1))


def test_an_answer_that_copies_has_longer_drafts_than_one_that_does_not() -> None:
    acceptance = Acceptance(3)
    for _ in range(40):
        acceptance.count(slots(0, 1), matched(4, 4), np.array([True, False]))
    copies, other, unknown = acceptance.survival(slots(0, 1, 2), matched(4, 4, 4), 1)[:, 0]
    assert copies > 0.85
    assert other < 0.15
    assert other < unknown < copies


def test_outcomes_are_counted_by_the_length_of_the_context() -> None:
    acceptance = Acceptance(2)
    before = acceptance.survival(slots(1), matched(12), 1)
    for _ in range(40):
        acceptance.count(slots(0), matched(2), np.array([False]))
    assert acceptance.survival(slots(1), matched(12), 1) == pytest.approx(before)
    assert float(acceptance.survival(slots(1), matched(2), 1)[0, 0]) < 0.1


def test_a_new_sequence_has_what_all_have_in_common() -> None:
    acceptance = Acceptance(2)
    for _ in range(40):
        acceptance.count(slots(0), matched(2), np.array([True]))
    known = float(acceptance.survival(slots(0), matched(2), 1)[0, 0])
    acceptance.admit(0)
    common = float(acceptance.survival(slots(0), matched(2), 1)[0, 0])
    assert common == pytest.approx(float(acceptance.survival(slots(1), matched(2), 1)[0, 0]))
    assert 0.3 < common < known


def test_what_was_long_ago_is_forgotten() -> None:
    acceptance = Acceptance(1)
    for came in [False] * 300 + [True] * 300:
        acceptance.count(slots(0), matched(2), np.array([came]))
    assert float(acceptance.survival(slots(0), matched(2), 1)[0, 0]) > 0.95
