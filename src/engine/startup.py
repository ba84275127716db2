"""From a Resolved to an EngineCore that can serve, and what a failure on the way is to the command that started it."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ..config import DeploymentError, Resolved
from ..config.errors import EXIT_ENVIRONMENT, EXIT_FAILED
from ..config.resolve.gpu import is_interpreting
from .api import EngineInfo
from .core import Scheduler, SchedulerInterface, SchedulerSettings
from .core.interface import MEMBERS
from .engine_core import EngineCore, Runner, StepQueue
from .launch_queue import LaunchQueue
from .plugins import import_class, make, named_by
from .runner.cuda.buckets import mixed_buckets
from .runner.kv_memory import Quiet, reserve_kv_memory
from .runner.measure import PhaseClock
from .runner.spare_pages import spare_pages
from .sampling.named_processors import install
from .step_worker import StepWorker

if TYPE_CHECKING:
    from .sampling.logits_processor import LogitsProcessor  # imports torch

MakeScheduler = Callable[[int], SchedulerInterface]  # of a number of blocks


class WarmRunner(Runner, Protocol):
    """A runner as it is before the engine is ready."""

    def warm_up(self) -> None: ...

    def info(self) -> EngineInfo: ...


def scheduler_settings(resolved: Resolved) -> SchedulerSettings:
    scheduler, cache = resolved.scheduler, resolved.cache
    return SchedulerSettings(
        num_blocks=resolved.num_kv_blocks,
        block_size=cache.block_size,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_model_len=resolved.model.max_model_len,
        max_prefill_share=scheduler.max_prefill_share,
        step_sizes=mixed_buckets(scheduler.max_num_batched_tokens) if scheduler.cuda_graph_sizes else (),
        enable_prefix_caching=cache.enable_prefix_caching,
        prefix_caching_hash_algo=cache.prefix_caching_hash_algo,
        enable_chunked_prefill=scheduler.enable_chunked_prefill,
        max_num_partial_prefills=scheduler.max_num_partial_prefills,
        max_long_partial_prefills=scheduler.max_long_partial_prefills,
        long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
        scheduling_policy=scheduler.scheduling_policy,
        max_queued_requests=scheduler.max_queued_requests,
        max_queued_tokens=scheduler.max_queued_tokens,
        eos_token_ids=resolved.facts.eos_token_ids,
        seed=resolved.model.seed,
    )


def build_core(resolved: Resolved, phase: Callable[[str], None] | None = None) -> EngineCore:
    """Load the model and warm it up. Classes that the deployment names are imported first.

    phase: is told the name of each start-up phase as it begins.
    Raises PluginError, and what the runner raises: ModelFilesError, MemoryError, OSError without the device.
    """
    clock = PhaseClock(phase)
    clock.start("libraries")
    with named_by("scheduler.scheduler_cls"):
        make_scheduler = _scheduler_maker(resolved)
    with named_by("model.logits_processors"):
        processors = install(resolved.model.logits_processors)
    build = _on_cpu if resolved.device.device == "cpu" else _on_gpu
    return build(resolved, phase, clock, processors, make_scheduler)


def _on_cpu(
    resolved: Resolved,
    phase: Callable[[str], None] | None,
    clock: PhaseClock,
    processors: Sequence[LogitsProcessor],
    make_scheduler: MakeScheduler,
) -> EngineCore:
    _spin_little()
    kv_memory = reserve_kv_memory(resolved)
    scheduler = make_scheduler(resolved.num_kv_blocks)
    with spare_pages(resolved.memory.weights_bytes, kv_memory.touch_first):
        from .runner.loaded_model import load_on_cpu  # torch: takes a second, and is a phase of its own
        from .runner.model_runner import ModelRunner

    clock.stop()
    runner = ModelRunner(resolved, phase, processors, partial(load_on_cpu, kv_memory=kv_memory))
    steps = StepWorker(runner.execute) if resolved.scheduler.async_scheduling else None
    core = _core(resolved, runner, clock, scheduler, steps)
    kv_memory.touch_behind(Quiet(_step_counter(core)))
    return core


def _on_gpu(
    resolved: Resolved,
    phase: Callable[[str], None] | None,
    clock: PhaseClock,
    processors: Sequence[LogitsProcessor],
    make_scheduler: MakeScheduler,
) -> EngineCore:
    from .runner.cuda.device_runner import DeviceRunner

    if is_interpreting():  # rows that fill a step up compute with whatever memory holds: NumPy tells, a GPU does not
        warnings.filterwarnings("ignore", "(overflow|invalid value) encountered", RuntimeWarning)
    clock.stop()
    runner = DeviceRunner(resolved, phase, processors)
    scheduler = make_scheduler(runner.num_blocks)  # as many as the device turned out to have room for
    steps = LaunchQueue(runner) if resolved.scheduler.async_scheduling else None
    return _core(resolved, runner, clock, scheduler, steps, runner.idle)


def _core(
    resolved: Resolved,
    runner: WarmRunner,
    clock: PhaseClock,
    scheduler: SchedulerInterface,
    steps: StepQueue[Any] | None,
    idle: Callable[[], bool] | None = None,
) -> EngineCore:
    with named_by("model.logits_processors"):  # no other code of the deployment's own is in those steps
        runner.warm_up()
    info = runner.info()
    return EngineCore(
        scheduler,
        runner,
        replace(info, phases={**clock.seconds, **info.phases}),
        steps=steps,
        idle=idle,
        processor_pattern=resolved.model.logits_processor_pattern,
    )


def _step_counter(core: EngineCore) -> Callable[[], int | None]:
    core_of = weakref.ref(core)  # whoever asks must not keep the engine

    def count() -> int | None:
        core = core_of()
        return None if core is None or core.is_stepping else core.num_steps

    return count


def _scheduler_maker(resolved: Resolved) -> MakeScheduler:
    """The class is imported now, and made once the number of blocks is known."""
    settings, path = scheduler_settings(resolved), resolved.scheduler.scheduler_cls
    if path == "auto":
        return lambda num_blocks: Scheduler(replace(settings, num_blocks=num_blocks))
    found = import_class(path, MEMBERS)

    def make_named(num_blocks: int) -> SchedulerInterface:
        with named_by("scheduler.scheduler_cls"):
            named: SchedulerInterface = make(path, found, replace(settings, num_blocks=num_blocks))
        return named

    return make_named


def _spin_little() -> None:
    """Let OpenMP threads wait for the next parallel region awake for some 50 us only; read when torch loads libgomp.

    By default they spin for milliseconds and hold the cores that the API process and the thread they wait for need:
    a 5 M model on two busy cores took 43 ms per token with a spin count of 20 000, 2 ms with 1000.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def exit_code_of(error: BaseException) -> int:
    """What the command ends with when this ended the start: 3 model files, 4 environment, 78 configuration, else 1."""
    if isinstance(error, DeploymentError):
        return error.exit_code
    return EXIT_ENVIRONMENT if isinstance(error, MemoryError | OSError) else EXIT_FAILED
