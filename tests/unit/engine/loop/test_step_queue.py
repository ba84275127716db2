from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from tests.unit.engine.runner.plans import make_plan

from stoker.engine.loop.step_queue import InlineStepQueue
from stoker.engine.step import StepPlan, StepResult

RESULT = StepResult(np.array([5], np.int32))


def test_a_step_is_executed_before_submit_returns():
    executed: list[int] = []
    times = iter([1.0, 3.5])

    def execute(plan: StepPlan) -> StepResult:
        executed.append(plan.step)
        return RESULT

    step = InlineStepQueue(SimpleNamespace(execute=execute), lambda: next(times)).submit(make_plan(step=4))
    assert executed == [4]
    assert step.result() == (RESULT, 2.5)


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()])
def test_a_failure_is_raised_by_the_result_and_later_steps_run(error: BaseException):
    def execute(plan: StepPlan) -> StepResult:
        if plan.step == 0:
            raise error
        return RESULT

    queue = InlineStepQueue(SimpleNamespace(execute=execute))
    failed = queue.submit(make_plan(step=0))
    with pytest.raises(type(error)):
        failed.result()
    queue.recover([failed])
    assert queue.submit(make_plan(step=1)).result()[0] is RESULT
