from __future__ import annotations

import numpy as np
import pytest

from stoker.engine.spec_decode.step_times import StepTimes


def measured(**changes: float) -> StepTimes:
    times = StepTimes()
    times.measure({1: 1.0, 2: 1.2, 8: 1.8, **{int(name[1:]): value for name, value in changes.items()}})
    return times


def of_one_row(times: StepTimes, *num_drafts: int) -> list[float]:
    found: list[float] = times.seconds(1, np.array(num_drafts)).tolist()
    return found


def test_nothing_is_known_before_a_measurement() -> None:
    """Then a token of a larger step costs what it costs alone."""
    assert of_one_row(StepTimes(), 0, 1, 6) == [1.0, 2.0, 7.0]


def test_between_and_beyond_what_was_measured() -> None:
    """The last slope is that over the whole curve if the last points say less."""
    assert of_one_row(measured(), 0, 1, 4, 7) == pytest.approx([1.0, 1.2, 1.5, 1.8])
    assert of_one_row(measured(), 17)[0] == pytest.approx(1.8 + 10 * 0.8 / 7)
    assert measured().seconds(4, 4) == pytest.approx(1.8)


def test_noise_at_the_end_does_not_make_larger_steps_free() -> None:
    """8 and 16 tokens took the same time, and 272 tokens were expected to take it too."""
    times = StepTimes()
    times.measure({1: 100.0, 8: 137.0, 16: 136.0})
    assert of_one_row(times, 271)[0] > 137 + 256 * 2


def test_a_larger_step_never_takes_less() -> None:
    """Noise of a measurement said that four tokens take less than two."""
    assert of_one_row(measured(_4=0.9), 1, 3, 7) == pytest.approx([1.2, 1.215, 1.8], abs=0.02)


def test_steps_without_drafts_say_what_all_steps_take() -> None:
    times = measured()
    for _ in range(300):
        times.record(1, 0, 3.0)
    assert of_one_row(times, 0, 7) == pytest.approx([3.0, 5.4], rel=1e-3)


def test_steps_with_drafts_say_what_drafts_cost() -> None:
    """A cost that grows with the drafts was added to steps without them too, so that drafts seemed to be cheap."""
    times = measured()
    for _ in range(300):
        times.record(1, 7, 1.0 + 7 * 0.5)
    assert of_one_row(times, 0, 7) == pytest.approx([1.0, 4.5], rel=1e-2)


def test_a_flat_measurement_is_corrected() -> None:
    times = StepTimes()
    times.measure({1: 1.0, 8: 1.0})
    for _ in range(300):
        times.record(1, 7, 1.7)
    assert of_one_row(times, 7)[0] == pytest.approx(1.7, rel=0.01)


def test_a_step_that_was_interrupted_counts_as_a_slow_one() -> None:
    times = measured()
    times.record(1, 0, 1e6)
    assert of_one_row(times, 0)[0] == pytest.approx(1 + 0.1 * 3)
    times.record(1, 7, 1e6)
    assert of_one_row(times, 7)[0] < 20


def test_a_time_is_never_0() -> None:
    times = measured()
    for _ in range(20):
        times.record(1, 0, 0.0)
        times.record(1, 7, 0.0)
    assert 0 < of_one_row(times, 0)[0] < of_one_row(times, 7)[0]


def test_another_measurement_starts_again() -> None:
    times = measured()
    times.record(1, 0, 5.0)
    times.measure({1: 2.0, 4: 3.0})
    assert of_one_row(times, 0, 3) == [2.0, 3.0]
