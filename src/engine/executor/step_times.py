"""How long steps of several tokens take: measured once the model is loaded, before the first request."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..runner.runner import Runner
from ..runner.warm_up import plan_with_drafts
from ..step import StepPlan

_SHAPES = ((1, 1), (1, 2), (1, 4), (1, 8), (1, 16), (3, 8), (4, 8), (8, 8), (16, 8))  # rows, and tokens of each
_NUM_TIMED = 3
_MOST_S = 2.0  # after which larger steps are left out: a user waits for this


def step_times(runner: Runner, execute: Callable[[StepPlan], object]) -> dict[int, float]:
    """Seconds of steps that verify drafts, by their number of tokens. execute: executes the steps."""
    began, found = time.perf_counter(), dict[int, float]()
    for num_rows, num_tokens in _SHAPES:
        plan = plan_with_drafts(runner.made.resolved, runner.loaded.cache, num_rows, num_tokens)
        if plan is None or (found and time.perf_counter() - began > _MOST_S):
            continue
        execute(plan)  # the first step of a shape is captured
        seconds = []
        for _ in range(_NUM_TIMED):
            started = time.perf_counter()
            execute(plan)
            seconds.append(time.perf_counter() - started)
        found[num_rows * num_tokens] = min(seconds)
    return found
