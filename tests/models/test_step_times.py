"""The measurement of steps that verify drafts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.engine.executor import step_times
from stoker.engine.runner.load_runner import load_runner
from stoker.engine.step import StepPlan

from .conftest import Saved
from .engine import resolved


@pytest.mark.parametrize(("seconds", "num_timed", "num_shapes"), [(0.001, 3, 8), (0.6, 1, 3)])
def test_the_shapes_that_say_most_are_measured_however_long_a_step_takes(
    seconds: float,
    num_timed: int,
    num_shapes: int,
    saved: Callable[[str], Saved],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """Where a step takes 0.6 s, only steps of one token were measured, and nothing was ever drafted."""
    settings = resolved(saved("llama")[1], tmp_path, scheduler={"max_num_batched_tokens": 256})
    runner, executed, clock = load_runner(settings), list[StepPlan](), itertools.count()
    monkeypatch.setattr(step_times.time, "perf_counter", lambda: next(clock) * seconds)

    def execute(plan: StepPlan) -> None:
        runner.execute(plan)
        executed.append(plan)

    found = step_times.step_times(runner, execute)
    assert set(found) >= {1, 16, 63}
    assert len(found) == num_shapes
    assert len(executed) == len(found) * (1 + 2 * num_timed)
    assert all(value == pytest.approx(seconds) for value in found.values())
