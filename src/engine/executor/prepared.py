"""Prepared: what every executor is built from, before a model is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ...config import Resolved
from ..kv_stores.tiered_store import TieredStore
from ..loop.device_step_queue import DeviceStepQueue
from ..loop.step_queue import InlineStepQueue, StepQueue
from ..loop.step_queue import Runner as StepRunner
from ..loop.thread_step_queue import ThreadStepQueue
from ..ranks.group_runner import GroupRunner
from ..runner.measure import PhaseClock
from ..structured.grammars import Grammars
from ..worker import Workplace, worker_class

if TYPE_CHECKING:
    from ..runner.load_runner import Load, PartsOf  # they import torch
    from ..runner.runner import Runner
    from ..sampling.logits_processor import LogitsProcessor

RunnerT = TypeVar("RunnerT", bound=StepRunner)


@dataclass(frozen=True)
class Prepared:
    """An engine whose model is not loaded: the classes that the deployment names are imported."""

    resolved: Resolved
    phase: Callable[[str], None] | None  # called with the name of each phase as it begins
    clock: PhaseClock  # of the phases before the runner's
    processors: Sequence[LogitsProcessor]
    grammars: Grammars | None
    store: TieredStore | None

    def steps(self, runner: RunnerT, overlapping: Callable[[RunnerT], StepQueue[Any]]) -> StepQueue[Any]:
        """overlapping: makes the queue that executes steps while the next is planned."""
        return overlapping(runner) if self.resolved.scheduler.async_scheduling else InlineStepQueue(runner)

    def steps_of_stages(self, runner: GroupRunner) -> StepQueue[Any]:
        """The queue of ranks on CPUs: each stage of a pipeline can compute another step at the same time."""
        num_stages = self.resolved.num_stages
        if num_stages == 1:
            return self.steps(runner, ThreadStepQueue)
        return self.steps(runner, partial(DeviceStepQueue, depth=num_stages))

    def load_runner(self, parts_of: PartsOf, load: Load, *, samples: bool = True) -> Runner:
        """Load the part of the model that this process computes. samples: whether tokens are sampled here, among
        those that grammars allow."""
        from ..runner.load_runner import load_runner

        grammars = self.grammars if samples else None
        return load_runner(self.resolved, parts_of, load, grammars=grammars, phase=self.phase)

    def workplace(self, rank: int, runner: Runner) -> Workplace:
        parallel = self.resolved.parallel
        kind = worker_class(parallel)
        model = runner.rank_model(parallel.topology.rank_in_group(rank))
        return Workplace(kind, parallel, rank, model)


def limit_spinning() -> None:
    """Let OpenMP threads spin for about 50 us only between parallel regions; read when torch loads libgomp.

    By default they spin for milliseconds, and occupy the cores that the API process and the main thread need:
    a 5 M model on two busy cores took 43 ms per token with a spin count of 20 000, 2 ms with 1000.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
