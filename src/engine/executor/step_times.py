"""How long steps of several tokens take: measured once the model is loaded, before the first request."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..runner.runner import Runner
from ..runner.warm_up import plan_with_drafts
from ..step import StepPlan

# Rows, and tokens of each: those that say most come first.
_SHAPES = ((1, 1), (1, 16), (8, 8), (1, 4), (16, 8), (4, 8), (1, 8), (3, 8), (1, 2))
_DRAFT_LENGTHS = (1, 4, 8)
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
            execute(_admitting(plan, 1))  # which takes a part of the time of short steps
            started = time.perf_counter()
            execute(replace(plan, released_slots=[], admissions=[]))
            seconds.append(time.perf_counter() - started)
        found[plan.num_batched_tokens] = min(seconds)
    return found


def _admitting(plan: StepPlan, num_tokens: int) -> StepPlan:
    """A step that admits the sequences of a plan, and computes this number of tokens of each prompt."""
    every = np.ones(plan.num_rows, np.int32)
    return replace(plan, num_computed=0 * every, num_tokens=num_tokens * every, num_outputs=0 * every, drafts=[])


def draft_times(runner: Runner, execute: Callable[[StepPlan], object]) -> dict[int, float]:
    """Seconds in which the network drafts several tokens for one row, by their number; empty without a network."""
    found = dict[int, float]()
    drafts = runner.drafts
    for num_drafts in _DRAFT_LENGTHS if drafts is not None else ():
        plan = plan_with_drafts(runner.made.resolved, runner.loaded.cache, 1, 1 + num_drafts)
        if plan is None or drafts is None:
            continue
        execute(_admitting(plan, int(plan.num_computed[0])))
        own, seconds = replace(plan, released_slots=[], admissions=[], drafts=[]), list[float]()
        drafts.draft(own)  # it has captured its steps then
        for _ in range(_NUM_TIMED):
            began = time.perf_counter()
            drafts.draft(own)
            seconds.append(time.perf_counter() - began)
        found[num_drafts] = min(seconds)
    if drafts is not None:
        drafts.seconds = 0.0
    return found
