from __future__ import annotations

import numpy as np
import pytest

from stoker.engine.spec_decode.step_times import StepTimes


def measured(**changes: float) -> StepTimes:
    times = StepTimes()
    times.measure({1: 1.0, 2: 1.2, 8: 1.8, **{int(name[1:]): value for name, value in changes.items()}})
    return times


def test_nothing_is_known_before_a_measurement() -> None:
    """Then a token of a larger step costs what it costs alone."""
    assert StepTimes().seconds(np.array([1, 2, 7])).tolist() == [1.0, 2.0, 7.0]


def test_between_and_beyond_what_was_measured() -> None:
    found = measured().seconds(np.array([1, 2, 5, 8, 18]))
    assert found.tolist() == pytest.approx([1.0, 1.2, 1.5, 1.8, 2.8])


def test_a_larger_step_never_takes_less() -> None:
    """Noise of a measurement said that four tokens take less than two."""
    times = measured(_4=0.9)
    assert times.seconds(np.array([2, 4, 8])).tolist() == pytest.approx([1.2, 1.2, 1.8])


def test_steps_move_the_curve_and_not_its_form() -> None:
    times = measured()
    for _ in range(200):
        times.took(2, 2.2)
    assert times.seconds(np.array([1, 2, 8])).tolist() == pytest.approx([2.0, 2.2, 2.8], rel=1e-3)
    for _ in range(200):
        times.took(8, 1.8)
    assert float(times.seconds(1)) == pytest.approx(1.0, rel=1e-3)


def test_a_step_that_was_interrupted_counts_as_a_slow_one() -> None:
    times = measured()
    times.took(1, 1000.0)
    assert float(times.seconds(1)) == pytest.approx(1.4)


def test_a_time_is_never_0() -> None:
    times = measured()
    for _ in range(200):
        times.took(8, 0.0)
    assert float(times.seconds(1)) > 0
