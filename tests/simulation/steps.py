"""Steps: a StepQueue that executes steps when their results are asked for, or before. One of them may fail."""

from __future__ import annotations

from random import Random
from typing import Any

from stoker.engine.loop.step_queue import NotStarted, TimedResult
from stoker.engine.step import StepPlan, StepResult

from .invariants import Invariants
from .runner import FakeRunner

STEP_S = 0.02


class _Pending:
    def __init__(self, steps: Steps, plan: StepPlan) -> None:
        self._steps, self.plan = steps, plan
        self.outcome: StepResult | Exception | None = None

    def result(self) -> TimedResult:
        self._steps.execute_until(self)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        assert self.outcome is not None
        self._steps.retire(self)
        return self.outcome, STEP_S


class Steps:
    """A StepQueue: executes steps when their results are asked for, or before."""

    def __init__(self, runner: Any, fake: FakeRunner, invariants: Invariants, depth: int, random: Random) -> None:
        self.depth = depth
        self.fails_next = False
        self._runner, self._fake, self._invariants, self._random = runner, fake, invariants, random
        self._pending: list[_Pending] = []

    @property
    def all_executed(self) -> bool:
        return all(isinstance(each.outcome, StepResult) for each in self._pending)

    def submit(self, plan: StepPlan) -> _Pending:
        self._pending.append(_Pending(self, plan))
        if self._random.random() < 0.3:
            self.execute_until(self._pending[-1])
        return self._pending[-1]

    def execute_until(self, last: _Pending) -> None:
        for each in self._pending[: self._pending.index(last) + 1]:
            if each.outcome is None:
                each.outcome = self._execute(each.plan)

    def _execute(self, plan: StepPlan) -> StepResult | Exception:
        if any(isinstance(each.outcome, Exception) for each in self._pending):
            return NotStarted()
        try:
            if self.fails_next:
                self.fails_next = False
                raise MemoryError("broken")
            result: StepResult = self._runner.execute(plan)
        except AssertionError:  # of a check
            raise
        except Exception as error:
            return error
        return result

    def retire(self, pending: _Pending) -> None:
        self._pending.remove(pending)
        self._invariants.retired(STEP_S)

    def recover(self, unfinished: list[_Pending]) -> None:
        for each in unfinished:
            if isinstance(each.outcome, StepResult):
                self._fake.doubt(each.plan)
            else:
                is_begun = isinstance(each.outcome, MemoryError) and self._random.random() < 0.5
                self._fake.fail(each.plan, is_begun=is_begun)
            self._pending.remove(each)
            self._invariants.retired(0.0)
