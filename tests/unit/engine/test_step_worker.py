from __future__ import annotations

import threading

import numpy as np
import pytest
from tests.unit.engine.runner.plans import make_plan

from stoker.engine.core import StepPlan, StepResult
from stoker.engine.step_worker import NotBegun, StepWorker

RESULT = StepResult(np.array([5], np.int32))


def test_plans_are_carried_out_in_order_beside_the_caller():
    begun, may_end = threading.Event(), threading.Event()
    done: list[tuple[int, int]] = []

    def execute(plan: StepPlan) -> StepResult:
        begun.set()
        assert may_end.wait(10)
        done.append((plan.step, threading.get_ident()))
        return RESULT

    worker = StepWorker(execute)
    first, second = (worker.submit(make_plan(step=step)) for step in (0, 1))
    assert begun.wait(10)
    assert not first.done()
    may_end.set()
    assert first.result()[0] is second.result()[0] is RESULT
    assert [step for step, _ in done] == [0, 1]
    assert threading.get_ident() not in {thread for _, thread in done}


def test_what_waits_behind_a_failed_step_is_not_begun_until_it_is_mended():
    begun: list[int] = []

    def execute(plan: StepPlan) -> StepResult:
        begun.append(plan.step)
        if plan.step == 0:
            raise MemoryError
        return RESULT

    worker = StepWorker(execute)
    plans = [worker.submit(make_plan(step=step)) for step in (0, 1)]
    with pytest.raises(MemoryError):
        plans[0].result()
    with pytest.raises(NotBegun):
        plans[1].result()
    worker.recover(plans)
    assert worker.submit(make_plan(step=2)).result()[0] is RESULT
    assert begun == [0, 2]
