"""GroupRunner: the runner of one process among several that compute each step together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from ..loop.device_step_queue import LaunchingRunner
from ..step import StepPlan, StepResult
from ..transport.rank_messages import Finish
from .followers import Followers, in_step


class Group(Protocol):
    """What the processes say to each other about a step, as one of them says it."""

    def in_step(self) -> contextlib.AbstractContextManager[None]:
        """The context in which a part of a step is computed. It says to the others when this fails."""
        ...

    def announce(self, plan: StepPlan) -> None:
        """Called before the step begins here."""
        ...

    def finish(self, compute: Callable[[], Any]) -> StepResult:
        """The result of a step. compute: ends the part of this process."""
        ...


class GroupRunner:
    """Executes steps together with the other processes of a group."""

    def __init__(self, runner: LaunchingRunner, group: Group) -> None:
        """runner: computes the part of this process in a step."""
        self._runner, self._group = runner, group

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        """Begin a step. Returns a function that waits for its result. Both raise what the group's `in_step` raises."""
        with self._group.in_step():
            self._group.announce(plan)
            compute = self._runner.launch(plan)
        return partial(self._group.finish, compute)

    def execute(self, plan: StepPlan) -> StepResult:
        """A whole step."""
        return self.launch(plan)()


class LeadingGroup:
    """The group as rank 0 sees it, which plans the steps of all."""

    def __init__(self, others: Followers, *, has_stages: bool = False, announces: bool = True) -> None:
        """
        Args:
            has_stages: the others wait for a message before a step ends, because later stages compute meanwhile.
            announces: False if the runner itself sends the plans. It always sends those whose drafts it makes.
        """
        self._others, self._has_stages, self._announces = others, has_stages, announces

    def in_step(self) -> contextlib.AbstractContextManager[None]:
        """Raises as `in_step` of followers.py."""
        return in_step(self._others)

    def announce(self, plan: StepPlan) -> None:
        if self._announces and not plan.awaits_drafts:
            self._others.send(plan)

    def finish(self, compute: Callable[[], Any]) -> StepResult:
        with in_step(self._others):
            if self._has_stages:
                self._others.send(Finish())
            result: StepResult = compute()
            return result
