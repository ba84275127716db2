from __future__ import annotations

import pytest

from stoker.engine.api import EngineRequest, QueueFull, RequestInputs, SamplingParams
from stoker.engine.core import SchedulerSettings
from stoker.engine.core.admission_control import AdmissionControl
from stoker.engine.core.policy import RANKS, WaitingQueue
from stoker.engine.core.request import Request


def control(**limits: int) -> AdmissionControl:
    return AdmissionControl(
        SchedulerSettings(
            num_blocks=9, block_size=4, max_num_seqs=2, max_num_batched_tokens=9, max_model_len=30, **limits
        )  # type: ignore[arg-type]
    )


def queue(*lengths: int) -> WaitingQueue:
    made = WaitingQueue(RANKS["fcfs"])
    for arrival, length in enumerate(lengths):
        record = EngineRequest(request_id=str(arrival), inputs=RequestInputs([1] * length, SamplingParams()))
        made.push(
            Request.of(
                record,
                arrival=arrival,
                seed=0,
                eos_token_ids=(),
                max_length=30,
                reads_cache=True,
            )
        )
    return made


def test_waiting_requests_with_a_free_slot_are_not_counted():
    limited = control(max_queued_requests=1)
    limited.check(5, queue(3, 3), num_free_slots=2, num_finished=0)
    with pytest.raises(QueueFull, match=r"^3 requests are waiting$"):
        limited.check(5, queue(3, 3, 3), num_free_slots=2, num_finished=0)


def test_free_slots_do_not_count_when_the_newest_plan_left_requests_waiting():
    limited = control(max_queued_requests=1)
    limited.step_planned(num_waiting=1)
    with pytest.raises(QueueFull, match=r"^1 requests are waiting$"):
        limited.check(5, queue(3), num_free_slots=2, num_finished=0)
    limited.check(5, queue(), num_free_slots=2, num_finished=0)
    limited.step_planned(num_waiting=0)
    limited.check(5, queue(3), num_free_slots=2, num_finished=0)


def test_prompt_tokens_are_limited_but_any_single_request_is_taken():
    limited = control(max_queued_tokens=10)
    limited.check(11, queue(), num_free_slots=0, num_finished=0)
    limited.check(4, queue(6), num_free_slots=0, num_finished=0)
    with pytest.raises(QueueFull, match=r"^requests with 6 prompt tokens are waiting$"):
        limited.check(5, queue(6), num_free_slots=0, num_finished=0)


def test_the_time_to_try_again_follows_the_rate_of_finished_requests():
    limited = control(max_queued_requests=0, max_queued_tokens=10)

    def retry_after(num_tokens: int, *waiting: int, num_finished: int) -> float:
        with pytest.raises(QueueFull) as refused:
            limited.check(num_tokens, queue(*waiting), num_free_slots=len(waiting) + 1, num_finished=num_finished)
        return refused.value.retry_after_s

    limited.step_finished(6.0)
    limited.step_finished(6.0)
    assert limited.step_time_s == 12.0
    # 4 + 6 + 8 tokens wait, 6 each on average; 12 too many, which is two requests
    assert retry_after(4, 4, 6, 8, num_finished=3) == 8.0  # 4 s each
    assert retry_after(4, 4, 6, 8, num_finished=0) == 1.0  # no rate is known
    assert retry_after(4, 4, 6, 8, num_finished=100) == 1.0
    limited.step_finished(1000.0)
    assert retry_after(4, 4, 6, 8, num_finished=3) == 60.0
