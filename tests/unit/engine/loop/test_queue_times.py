from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from stoker.engine.api import EngineOutput, FinishReason, RequestInputs, SamplingParams
from stoker.engine.loop.queue_times import QueueTimes
from stoker.engine.step import StepPlan
from stoker.engine.step.plan import Admission


def plan(*request_ids: str) -> StepPlan:
    none, admitted = np.empty(0, np.int32), []
    for slot, request_id in enumerate(request_ids):
        admitted.append(Admission(slot, RequestInputs([1], SamplingParams()), [[0]], seed=0, request_id=request_id))
    return StepPlan(0, [], admitted, none, none, none, none, none, none.astype(bool))


def output(request_id: str, reason: FinishReason | None = None) -> EngineOutput:
    return EngineOutput(request_id=request_id, token_ids=[1], finish_reason=reason)


@pytest.fixture
def seconds() -> Iterator[float]:
    return iter(range(100))


def test_the_time_in_the_queue_comes_once_with_the_first_output(seconds: Iterator[float]) -> None:
    times = QueueTimes(lambda: next(seconds))
    times.arrived("a")  # at 0
    times.arrived("b")  # at 1
    times.planned(plan())  # reads no clock
    times.planned(plan("a"))  # at 2
    times.planned(plan("b", "a"))  # at 3; "a" was preempted and starts again
    first = [output("a"), output("b")]
    times.fill(first)
    assert [each.queued_s for each in first] == [2, 2]
    later = [output("a"), output("b")]
    times.fill(later)
    assert [each.queued_s for each in later] == [None, None]


def test_nothing_is_kept_of_requests_that_have_ended(seconds: Iterator[float]) -> None:
    times = QueueTimes(lambda: next(seconds))
    for request_id in ("aborted early", "aborted late", "refused", "done"):
        times.arrived(request_id)
    times.planned(plan("aborted late", "done"))
    times.forget("aborted early")
    times.forget("aborted late")
    times.fill([output("refused", FinishReason.ERROR), output("done", FinishReason.STOP)])
    assert vars(times)["_arrived_at"] == vars(times)["_queued_s"] == {}
