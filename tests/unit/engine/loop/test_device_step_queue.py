from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.unit.engine.runner.plans import make_plan

from stoker.engine.loop.device_step_queue import DeviceStepQueue
from stoker.engine.loop.step_queue import NotStarted
from stoker.engine.step import StepPlan, StepResult

RESULT = StepResult(np.array([5], np.int32))


class Device:
    """Launches steps immediately; results are taken later. Steps in `refuse` or `fail` raise."""

    def __init__(self, refuse: tuple[int, ...] = (), fail: tuple[int, ...] = ()) -> None:
        self.refuse, self.fail = refuse, fail
        self.launched: list[int] = []
        self.awaited: list[int] = []

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        if plan.step in self.refuse:
            raise RuntimeError("refused")
        self.launched.append(plan.step)
        return lambda: self._wait(plan.step)

    def _wait(self, step: int) -> StepResult:
        self.awaited.append(step)
        if step in self.fail:
            raise RuntimeError("failed")
        return RESULT

    def idle(self) -> bool:
        return False


def test_steps_are_launched_before_the_first_has_ended_and_timed_from_its_end():
    times = iter([1.0, 1.5, 4.0, 6.0])  # launched, launched, ended, ended
    device = Device()
    queue = DeviceStepQueue(device, lambda: next(times))
    first, second = queue.submit(make_plan(step=0)), queue.submit(make_plan(step=1))
    assert (device.launched, device.awaited) == ([0, 1], [])
    assert first.result() == (RESULT, 3.0)
    assert second.result() == (RESULT, 2.0)


@pytest.mark.parametrize("device", [Device(refuse=(1,)), Device(fail=(1,))])
def test_no_step_is_started_after_a_failure_until_recover(device: Device):
    queue = DeviceStepQueue(device)
    assert queue.submit(make_plan(step=0)).result()[0] is RESULT
    with pytest.raises(RuntimeError):
        queue.submit(make_plan(step=1)).result()
    next_step = queue.submit(make_plan(step=2))
    with pytest.raises(NotStarted):
        next_step.result()
    assert 2 not in device.launched
    queue.recover([next_step])
    assert queue.submit(make_plan(step=3)).result()[0] is RESULT


def test_recover_waits_for_the_steps_on_the_device():
    device = Device(fail=(0,))
    queue = DeviceStepQueue(device)
    first, second = queue.submit(make_plan(step=0)), queue.submit(make_plan(step=1))
    with pytest.raises(RuntimeError, match="failed"):
        first.result()
    queue.recover([first, second])
    assert 1 in device.awaited
