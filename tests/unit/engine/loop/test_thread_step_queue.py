from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from tests.unit.engine.runner.plans import make_plan

from stoker.engine.loop.step_queue import NotStarted
from stoker.engine.loop.thread_step_queue import ThreadStepQueue
from stoker.engine.step import StepPlan, StepResult

RESULT = StepResult(np.array([5], np.int32))


def test_plans_are_executed_in_order_in_another_thread():
    begun, may_end = threading.Event(), threading.Event()
    done: list[tuple[int, int]] = []

    def execute(plan: StepPlan) -> StepResult:
        begun.set()
        assert may_end.wait(10)
        done.append((plan.step, threading.get_ident()))
        return RESULT

    queue = ThreadStepQueue(SimpleNamespace(execute=execute))
    first, second = (queue.submit(make_plan(step=step)) for step in (0, 1))
    assert begun.wait(10)
    assert not first.done()
    may_end.set()
    assert first.result()[0] is second.result()[0] is RESULT
    assert [step for step, _ in done] == [0, 1]
    assert threading.get_ident() not in {thread for _, thread in done}


def test_no_step_is_started_after_a_failed_one_until_recover():
    begun: list[int] = []

    def execute(plan: StepPlan) -> StepResult:
        begun.append(plan.step)
        if plan.step == 0:
            raise MemoryError
        return RESULT

    queue = ThreadStepQueue(SimpleNamespace(execute=execute))
    plans = [queue.submit(make_plan(step=step)) for step in (0, 1)]
    with pytest.raises(MemoryError):
        plans[0].result()
    with pytest.raises(NotStarted):
        plans[1].result()
    queue.recover(plans)
    assert queue.submit(make_plan(step=2)).result()[0] is RESULT
    assert begun == [0, 2]
