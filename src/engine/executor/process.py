"""ProcessExecutor: the executor of a runner that has loaded its model. The others are derived from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...config import Resolved
from ..api import EngineInfo, StepLaunches
from ..loop.executor import Executor, Sleeper
from ..loop.step_queue import StepQueue
from ..spec_decode.step_times import DraftTimes
from ..step import StepPlan, StepResult
from ..worker import WorkerCall

if TYPE_CHECKING:
    from ..runner.runner import Runner  # imports torch


class ProcessExecutor(Executor):
    """Steps of a runner in this process."""

    def __init__(
        self,
        resolved: Resolved,
        runner: Runner,
        steps: StepQueue[Any],
        execute: Callable[[StepPlan], StepResult] | None = None,
        *,
        sleeper: Sleeper | None = None,
        call: WorkerCall | None = None,
    ) -> None:
        """
        Args:
            execute: executes a step before the engine is ready; None for the runner's own.
            sleeper: has the memory that only steps need; None if the engine cannot sleep.
            call: calls a method of the workers of all processes; None if the engine has no workers.
        """
        super().__init__(steps)
        self._runner, self._execute, self._sleeper, self._call = runner, execute, sleeper, call
        self.num_blocks = runner.num_blocks  # of the KV cache, all groups of layers together
        self.info: Callable[[], EngineInfo] = runner.info
        self.can_sleep = sleeper is not None
        self.adapters = runner.loaded.adapters
        self._counts_launches = resolved.observability.cudagraph_metrics

    def warm_up(self) -> None:
        """Run what is initialised lazily, before the first request."""
        self._runner.warm_up(self._execute)

    def measure(self, times: DraftTimes) -> None:
        """See executor/step_times.py."""
        from .step_times import draft_times, step_times  # imports torch

        execute = self._execute or self._runner.execute
        times.steps.measure(step_times(self._runner, execute))
        if found := draft_times(self._runner, execute):
            times.drafts.measure(found)

    def idle(self) -> bool:
        return self._runner.idle()

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        return super().call(method, args, kwargs) if self._call is None else self._call(method, args, kwargs)

    def free_memory(self) -> None:
        if self._sleeper is not None:
            self._sleeper.free_memory()

    def take_memory(self) -> None:
        if self._sleeper is not None:
            self._sleeper.take_memory()

    def launches(self) -> StepLaunches | None:
        return self._runner.launches() if self._counts_launches else None

    def serves(self, count_steps: Callable[[], int | None]) -> None:
        """Called once the engine is made. count_steps: returns the number of steps so far, None while one runs."""

    def abandon(self, error: BaseException) -> None:
        """The start has failed with this error. Raises another one if a process of the model has caused it."""
        self.close()
