"""Prepared: what every way to start an engine begins with, and the engine made of it and of a runner."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ...config import Resolved
from ...config.schema.observability import ObservabilityConfig
from ..api import EngineInfo, StepLaunches
from ..core import SchedulerInterface
from ..core.block_store import BlockStore
from ..loop.engine_core import Caller, EngineCore, OtherProcesses, Sleeper
from ..loop.step_queue import InlineStepQueue, Runner, StepQueue
from ..plugins import named_by
from ..runner.measure import PhaseClock
from ..structured.grammars import Grammars
from ..worker import Workplace, worker_class
from .scheduler import MakeScheduler

if TYPE_CHECKING:
    from ..runner.model_runner import ModelRunner
    from ..runner.profiler import Profiler  # imports torch
    from ..runner.stages import LaterStageRunner
    from ..sampling.logits_processor import LogitsProcessor


class PreparedRunner(Protocol):
    """A runner before the engine is ready."""

    def warm_up(self) -> None: ...

    def info(self) -> EngineInfo: ...

    def launches(self) -> StepLaunches: ...


class InTurnRunner(PreparedRunner, Runner, Protocol): ...


RunnerT = TypeVar("RunnerT", bound=InTurnRunner)


@dataclass(frozen=True)
class Prepared:
    """An engine whose model is not loaded: the classes that the deployment names are imported."""

    resolved: Resolved
    phase: Callable[[str], None] | None  # called with the name of each phase as it begins
    clock: PhaseClock  # of the phases before those of the runner
    processors: Sequence[LogitsProcessor]
    make_scheduler: MakeScheduler
    grammars: Grammars | None
    store: BlockStore | None

    def steps(self, runner: RunnerT, overlapping: Callable[[RunnerT], StepQueue[Any]]) -> StepQueue[Any]:
        """overlapping: makes the queue that executes steps while the next is planned."""
        return overlapping(runner) if self.resolved.scheduler.async_scheduling else InlineStepQueue(runner)

    def workplace(self, rank: int, runner: ModelRunner | LaterStageRunner) -> Workplace:
        parallel = self.resolved.parallel
        kind = worker_class(parallel)
        model = runner.rank_model(rank % parallel.tensor_parallel_size)
        return Workplace(kind, parallel, rank, model)

    def core(
        self,
        runner: PreparedRunner,
        scheduler: SchedulerInterface,
        steps: StepQueue[Any],
        *,
        idle: Callable[[], bool] | None = None,
        others: OtherProcesses | None = None,
        sleeper: Sleeper | None = None,
        caller: Caller | None = None,
        expert_balance: Callable[[], float | None] | None = None,
        is_waited_for: Callable[[], bool] | None = None,
    ) -> EngineCore:
        """Warms the runner up."""
        with named_by("model.logits_processors"):  # those steps run no other code that the deployment names
            runner.warm_up()
        if self.grammars is not None:
            self.grammars.wait_loaded()
        info, observability = runner.info(), self.resolved.observability
        return EngineCore(
            scheduler,
            steps,
            replace(info, phases={**self.clock.seconds, **info.phases}),
            idle=idle,
            processor_pattern=self.resolved.model.logits_processor_pattern,
            grammars=self.grammars,
            logs_steps=observability.enable_logging_iteration_details,
            profiler=profiler_of(observability),
            launches=runner.launches if observability.cudagraph_metrics else None,
            expert_balance=expert_balance if self.resolved.parallel.enable_eplb else None,
            others=others,
            sleeper=sleeper,
            store=self.store,
            caller=caller,
            is_waited_for=is_waited_for,
        )


def profiler_of(observability: ObservabilityConfig) -> Profiler | None:
    from ..kernels import spans
    from ..runner.profiler import Profiler

    spans.is_marking = observability.enable_layerwise_nvtx_tracing
    settings = observability.profiler_config
    return Profiler.of(settings) if settings else None


def limit_spinning() -> None:
    """Let OpenMP threads spin for about 50 us only between parallel regions; read when torch loads libgomp.

    By default they spin for milliseconds, and occupy the cores that the API process and the main thread need:
    a 5 M model on two busy cores took 43 ms per token with a spin count of 20 000, 2 ms with 1000.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
