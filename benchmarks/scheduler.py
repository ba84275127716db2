"""Processor time of the engine's own work in a step of steady decode, in microseconds: all but the model.

schedule: the plan. prepare: the plan into the slot table and into tensors, and the drawn tokens back into the table.
finish: what the tokens mean. send: the step's message to the client, as bytes.

Usage: python -m benchmarks.scheduler [rows ...]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from stoker.engine.api import EngineRequest, SamplingParams
from stoker.engine.core import Scheduler, SchedulerSettings, StepPlan, StepResult
from stoker.engine.dispatch import Dispatch
from stoker.engine.runner.slot_table import SlotTable
from stoker.engine.runner.step_input import build_step_input, logit_tokens
from stoker.engine.sampling.sampling_table import SamplingTable
from stoker.engine.wire import Submit, encode

PROMPT_LEN = 100  # tokens, all different, so that rows reach the ends of their blocks at different steps
NUM_STEPS = 400
NUM_ROUNDS = 3  # the best counts: others use the machine too
BLOCK_SIZE = 16
STAGES = ("schedule", "prepare", "finish", "send")
CPU = torch.device("cpu")


def prepare(plan: StepPlan, slots: SlotTable) -> None:
    slots.apply(plan)
    build_step_input(plan, slots, CPU)
    wanted = logit_tokens(plan, slots)
    wanted.union(plan.num_batched_tokens)
    slots.append(plan.slots[wanted.sampled_rows], np.full(len(wanted.sampled_rows), 7, np.int32))


def measure(num_rows: int) -> dict[str, float]:
    """Mean microseconds of each stage with `num_rows` sequences decoding."""
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
    slots = SlotTable(num_rows, max_len, BLOCK_SIZE, SamplingTable(num_rows, 1000, (2,)))
    core: Any = SimpleNamespace(add=scheduler.add, step=lambda: outputs)
    dispatch: Dispatch[bytes] = Dispatch(core)
    for row in range(num_rows):
        prompt = list(range(row, row + PROMPT_LEN + row % BLOCK_SIZE))
        sampling = SamplingParams(max_tokens=None)
        request = EngineRequest(request_id=f"request-{row}", prompt_token_ids=prompt, sampling=sampling)
        dispatch.submit(b"client", Submit(row + 1, request))
    spent = dict.fromkeys(STAGES, 0.0)
    is_counted = False

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        start = time.thread_time()
        result = work()
        spent[stage] += (time.thread_time() - start) * is_counted
        return result

    for step in range(-20, NUM_STEPS):  # the first ones are prefill and warm-up
        is_counted = step >= 0
        plan = timed("schedule", scheduler.schedule)
        assert not is_counted or plan.num_rows == plan.num_batched_tokens == num_rows
        timed("prepare", lambda: prepare(plan, slots))  # noqa: B023 (called at once)
        result = StepResult(token_ids=np.where(plan.is_sampled, np.int32(7), np.int32(-1)))
        outputs = timed("finish", lambda: scheduler.finish_step(plan, result))  # noqa: B023
        timed("send", lambda: [encode(message) for message in dispatch.step().values()])
    return {stage: seconds / NUM_STEPS * 1e6 for stage, seconds in spent.items()}


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'rows':>6}" + "".join(f"{stage:>10}" for stage in (*STAGES, "all")) + "   microseconds")
    for num_rows in map(int, sys.argv[1:] or ["1", "32", "64", "256", "1024"]):
        best = min((measure(num_rows) for _ in range(NUM_ROUNDS)), key=lambda spent: sum(spent.values()))
        print(f"{num_rows:>6}" + "".join(f"{best[stage]:>10.1f}" for stage in STAGES) + f"{sum(best.values()):>10.1f}")


if __name__ == "__main__":
    main()
