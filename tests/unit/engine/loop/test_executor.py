"""Executor: a process alone, which has only a queue of steps."""

from __future__ import annotations

import pytest
from tests.fake_runner import FakeRunner, FakeSettings

from stoker.engine.api import CallError
from stoker.engine.loop.executor import Executor
from stoker.engine.loop.step_queue import InlineStepQueue
from stoker.engine.step import plan_without_rows


def test_a_queue_of_steps_is_enough():
    executor = Executor(InlineStepQueue(FakeRunner(FakeSettings())))
    result, _ = executor.submit(plan_without_rows()).result()
    assert (executor.depth, len(result.token_ids)) == (1, 0)
    with pytest.raises(CallError, match="no workers"):
        executor.call("method", [], {})
    assert [executor.can_sleep, executor.is_shared, executor.is_waited_for, executor.idle()] == [False] * 4
    assert (executor.launches(), executor.expert_balance) == (None, None)
    executor.check()
    executor.close()
