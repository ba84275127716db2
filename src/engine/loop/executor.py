"""Executor: computes the steps of an engine, in this process or together with other processes.

EngineCore has one, and no other idea of how a step is computed. The kinds are in the package `executor`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..api import CallError, StepLaunches
from ..step import StepPlan
from .adapter_reader import AdapterStore
from .step_queue import PendingStep, StepQueue


class Sleeper(Protocol):
    """What can do without its memory while there is no work."""

    def free_memory(self) -> None:
        """Raises MemoryError if it cannot, and has all of its memory still."""
        ...

    def take_memory(self) -> None:
        """Called after free_memory. Raises MemoryError if it cannot, and has none of it then."""
        ...


class Executor:
    """Executes plans by a queue of steps, and has nothing else: no other process, no workers, no postponed work.

    All methods are called from one thread. Subclasses override what they can do.
    """

    can_sleep = False  # whether `free_memory` and `take_memory` do something
    adapters: AdapterStore | None = None  # None if the engine serves none
    is_shared = False  # whether other replicas need this one for their steps

    def __init__(self, steps: StepQueue[Any]) -> None:
        self._steps = steps

    @property
    def depth(self) -> int:
        """Number of steps that may be in flight."""
        return self._steps.depth

    def submit(self, plan: StepPlan) -> PendingStep:
        """Begin a step. It raises nothing: the step's result does."""
        pending: PendingStep = self._steps.submit(plan)
        return pending

    def recover(self, unfinished: list[PendingStep]) -> None:
        """Wait, after a failure, for these steps to end without taking their results, and accept plans again."""
        self._steps.recover(unfinished)

    @property
    def is_waited_for(self) -> bool:
        """Whether other replicas have begun a step, in which this one must take part."""
        return False

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """What a method of the worker of each process returns, by rank. Raises CallError, or RunnerUnusable."""
        raise CallError("this engine has no workers: they are on CPUs only")

    def free_memory(self) -> None:
        """Sleep: give back the memory that only steps need.

        Raises MemoryError if that is not possible; all memory is still there then.
        """

    def take_memory(self) -> None:
        """Wake up, before the next step. Raises MemoryError if the system refuses; nothing is taken then."""

    def check(self) -> None:
        """Raises RunnerUnusable if a process that computes the steps has ended."""

    def idle(self) -> bool:
        """Do one part of the work that can wait until no request runs. Returns False when none is left."""
        return False

    def launches(self) -> StepLaunches | None:
        """How the steps were launched since the start; None if the deployment does not count it."""
        return None

    @property
    def expert_balance(self) -> float | None:
        """Mean load of the ranks over the largest one; None if experts do not move, or nothing is known yet."""
        return None

    def close(self) -> None:
        """Release the other processes. No step can follow."""
