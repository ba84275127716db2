"""How many long sequences run at a time if five of six layers have a window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core import Scheduler, SchedulerSettings
from stoker.engine.core.request import Request
from stoker.engine.core.sequence_blocks import SequenceBlocks
from stoker.engine.step import StepPlan, StepResult

CONTEXT, PROMPT, WINDOW, NUM_LAYERS = 32768, 31744, 1024, 6


def settings(windows: tuple[int | None, ...], num_bytes: int) -> SchedulerSettings:
    """num_bytes: of the cache, in tokens of one layer."""
    planes = NUM_LAYERS // len(windows)
    return SchedulerSettings(
        num_blocks=num_bytes // (16 * planes),
        block_size=16,
        windows=windows,
        max_num_seqs=64,
        max_num_batched_tokens=2048,
        max_model_len=CONTEXT,
        enable_prefix_caching=False,
    )


def answer(plan: StepPlan) -> StepResult:
    return StepResult(np.full(plan.num_outputs.sum(), 5, np.int32))


def num_running(scheduler: Scheduler) -> int:
    """Sequences that generate, when no more were admitted for two blocks of tokens."""
    sampling = SamplingParams(max_tokens=None, ignore_eos=True)
    for number in range(64):
        scheduler.add(EngineRequest(request_id=str(number), inputs=RequestInputs([1] * PROMPT, sampling)))
    num_decodes = 0
    while num_decodes < 32:
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.finish_step(plan, answer(plan))
        num_decodes = num_decodes + 1 if plan.num_tokens.max() == 1 else 0
    assert scheduler.stats().num_preemptions == 0
    return scheduler.stats().num_running


@pytest.mark.parametrize("num_whole", [1, 3])
def test_four_times_as_many_run_as_with_one_group(num_whole: int) -> None:
    """In a cache that holds 1 or 3 of them whole, with one block more for each."""
    num_bytes = NUM_LAYERS * (CONTEXT + 16) * num_whole
    assert num_running(Scheduler(settings((None,), num_bytes))) == num_whole
    assert num_running(Scheduler(settings((None, *[WINDOW] * 5), num_bytes))) >= 4 * num_whole


def test_if_no_prompt_can_go_on_the_last_one_gives_up_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler(replace(settings((8,), NUM_LAYERS * 1024), max_num_batched_tokens=64))
    for number in range(2):
        request = EngineRequest(request_id=str(number), inputs=RequestInputs([1] * 500, SamplingParams()))
        scheduler.add(request)
    plan = scheduler.schedule()
    assert plan is not None
    assert plan.num_rows == 2
    scheduler.finish_step(plan, answer(plan))
    right = SequenceBlocks.reachable_end

    def none_while_two_run(blocks: SequenceBlocks, request: Request, end: int) -> int:
        return 0 if not scheduler.stats().num_preemptions else right(blocks, request, end)

    monkeypatch.setattr(SequenceBlocks, "reachable_end", none_while_two_run)
    plan = scheduler.schedule()
    assert plan is not None
    assert (plan.num_rows, scheduler.stats().num_waiting) == (1, 1)
    assert plan.num_computed[0] > 0
