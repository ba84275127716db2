"""SharingGroup: replicas that compute each step together, because each has some of the experts of the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..loop.step_queue import RunnerUnusable, cause_of
from ..step import StepPlan, StepResult

if TYPE_CHECKING:  # it imports torch
    from ..collectives import SharedExperts


class ReplicaLost(RunnerUnusable):
    def __init__(self) -> None:
        super().__init__("another replica, which has other experts, has ended")


class SharingGroup:
    """The group as each replica sees it. A plan without rows is one of a step of the others."""

    def __init__(self, replicas: SharedExperts) -> None:
        self._replicas = replicas

    @contextlib.contextmanager
    def in_step(self) -> Iterator[None]:
        """Raises RunnerUnusable on a failure: the others have computed a part of the step, and no step can follow in
        any replica. Raises ReplicaLost if another one has ended."""
        try:
            yield
        except BaseException as error:
            is_of_another = self._replicas.is_closed
            self._replicas.close()
            if not isinstance(error, Exception):
                raise
            if is_of_another:
                raise ReplicaLost from None
            raise RunnerUnusable(f"a step failed, which other replicas have begun: {cause_of(error)}") from error

    def announce(self, plan: StepPlan) -> None:
        """Waits until all replicas have announced a step."""
        self._replicas.begin(plan.num_batched_tokens)

    def finish(self, compute: Callable[[], Any]) -> StepResult:
        """Nothing is exchanged after the layers of the model: a failure of sampling ends no other replica."""
        result: StepResult = compute()
        return result
