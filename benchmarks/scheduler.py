"""Microseconds the scheduler takes per step of steady decode: schedule and finish_step, without any model.

Usage: python benchmarks/scheduler.py [rows ...]
"""

from __future__ import annotations

import sys
import time

import numpy as np

from stoker.engine.api import EngineRequest, SamplingParams
from stoker.engine.core import Scheduler, SchedulerSettings, StepPlan, StepResult

PROMPT_LEN = 100  # tokens, all different, so that rows reach the ends of their blocks at different steps
NUM_STEPS = 400
BLOCK_SIZE = 16


def result_of(plan: StepPlan) -> StepResult:
    return StepResult(token_ids=np.where(plan.is_sampled, np.int32(7), np.int32(-1)))


def measure(num_rows: int) -> tuple[float, float]:
    """Mean microseconds of one `schedule` and of one `finish_step`, with `num_rows` sequences decoding."""
    max_len = PROMPT_LEN + BLOCK_SIZE + 2 * NUM_STEPS
    settings = SchedulerSettings(
        num_blocks=num_rows * (max_len // BLOCK_SIZE + 2),
        block_size=BLOCK_SIZE,
        max_num_seqs=num_rows,
        max_num_batched_tokens=num_rows * (PROMPT_LEN + BLOCK_SIZE),
        max_model_len=max_len,
        max_queued_requests=num_rows,
        eos_token_ids=(2,),
    )
    scheduler = Scheduler(settings)
    for row in range(num_rows):
        prompt = list(range(row, row + PROMPT_LEN + row % BLOCK_SIZE))
        sampling = SamplingParams(max_tokens=None)
        scheduler.add(EngineRequest(request_id=f"request-{row}", prompt_token_ids=prompt, sampling=sampling))
    schedule_s = finish_s = 0.0
    for step in range(-20, NUM_STEPS):  # the first ones are prefill and warm-up
        start = time.perf_counter()
        plan = scheduler.schedule()
        planned = time.perf_counter()
        assert plan is not None
        result = result_of(plan)
        drawn = time.perf_counter()
        scheduler.finish_step(plan, result)
        end = time.perf_counter()
        if step >= 0:
            assert plan.num_rows == plan.num_batched_tokens == num_rows
            schedule_s += planned - start
            finish_s += end - drawn
    return schedule_s / NUM_STEPS * 1e6, finish_s / NUM_STEPS * 1e6


def main() -> None:
    print(f"{'rows':>6} {'schedule':>10} {'finish':>10} {'step':>10}   microseconds")
    for num_rows in map(int, sys.argv[1:] or ["1", "64", "256", "1024"]):
        schedule_us, finish_us = measure(num_rows)
        print(f"{num_rows:>6} {schedule_us:>10.1f} {finish_us:>10.1f} {schedule_us + finish_us:>10.1f}")


if __name__ == "__main__":
    main()
