"""How long steps of several tokens take: measured once the model is loaded, before the first request."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ..runner.runner import Runner
from ..runner.warm_up import plan_with_drafts
from ..step import StepPlan

# Rows, and tokens of each: those that say most come first.
_SHAPES = ((1, 1), (1, 16), (8, 8), (1, 4), (16, 8), (4, 8), (1, 8), (3, 8), (1, 2))
_DRAFT_SHAPES = ((1, 8), (8, 4))
_NUM_LEAST = 3
_NUM_TIMED = 3
_LONG_S = 0.2  # a step that takes longer is timed once
_MOST_S = 2.0  # after which shapes are left out: a user waits for this


def step_times(runner: Runner, execute: Callable[[StepPlan], object]) -> dict[int, float]:
    """Seconds of steps that verify drafts, by their number of tokens. execute: executes the steps.

    It takes more than two seconds only with models whose single steps take long.
    """
    began, found = time.perf_counter(), dict[int, float]()
    for index, (num_rows, num_tokens) in enumerate(_SHAPES):
        plan = plan_with_drafts(runner.made.resolved, runner.loaded.cache, num_rows, num_tokens)
        if plan is None or (index >= _NUM_LEAST and time.perf_counter() - began > _MOST_S):
            continue
        execute(plan)  # the first step of a shape is captured
        seconds: list[float] = []
        while len(seconds) < _NUM_TIMED and not (seconds and seconds[0] > _LONG_S):
            started = time.perf_counter()
            execute(plan)
            seconds.append(time.perf_counter() - started)
        found[plan.num_batched_tokens] = min(seconds)
    return found


def draft_times(runner: Runner, execute: Callable[[StepPlan], object]) -> dict[int, float]:
    """Seconds in which the network drafts one token for each of several rows, by their number; empty without one."""
    found = dict[int, float]()
    drafts = runner.drafts
    for num_rows, num_tokens in _DRAFT_SHAPES if drafts is not None else ():
        plan = plan_with_drafts(runner.made.resolved, runner.loaded.cache, num_rows, num_tokens)
        if plan is None or drafts is None:
            continue
        execute(plan)
        own = replace(plan, admissions=[], drafts=[])
        drafts.before(own)  # it has computed the prompt then
        began = time.perf_counter()
        drafts.before(own)
        found[num_rows] = (time.perf_counter() - began) / (num_tokens - 1)
        drafts.seconds = 0.0
    return found
