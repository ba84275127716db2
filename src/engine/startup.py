"""Makes an EngineCore that can serve from a Resolved, and maps failures of the start to exit codes."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ..config import DeploymentError, Resolved
from ..config.exit_codes import EXIT_ENVIRONMENT, EXIT_FAILED
from ..config.resolve.gpu import is_interpreting
from ..config.schema.observability import STEP_TOKENS, ObservabilityConfig
from ..model.step_costs import StepCosts, step_costs
from ..vocabulary import TokenizerError, add_missing_tokens, read_vocabulary
from .api import EngineInfo, StepLaunches
from .core import Scheduler, SchedulerInterface, SchedulerSettings
from .core.block_store import BlockStore
from .core.interface import MEMBERS
from .device_step_queue import DeviceStepQueue
from .engine_core import Caller, EngineCore, OtherProcesses
from .event_payloads import EventPayloads
from .event_publisher import EventPublisher
from .followers import RankLost
from .launched.launch import Launch, check_serves, launch_of
from .launched.leading import LaunchedLeadingRunner, LaunchedLeadingStageRunner, LaunchedProcesses
from .leading_devices import LeadingDeviceRunner, OtherDevices
from .leading_runner import LeadingRunner, LeadingSampler, LeadingStageRunner
from .plugins import PluginError, import_class, make, named_by
from .rank_link import Loaded
from .rank_processes import RankProcesses
from .runner.cuda.buckets import mixed_buckets
from .runner.kv_memory import IdleGap, reserve_kv_memory
from .runner.measure import PhaseClock
from .runner.prefaulted_pages import prefaulted_pages
from .sampling.named_processors import install
from .step_queue import InlineStepQueue, Runner, StepQueue
from .stores.open_store import open_store
from .structured.backend import Backend, GrammarError
from .structured.grammars import Grammars
from .structured.guidance import Guidance
from .thread_step_queue import ThreadStepQueue
from .worker import Workplace, worker_class

if TYPE_CHECKING:
    from .launched.following import LaunchedRank  # imports torch
    from .profiler import Profiler  # imports torch
    from .runner.model_runner import ModelRunner
    from .runner.stages import LaterStageRunner
    from .sampling.logits_processor import LogitsProcessor

Launched: TypeAlias = "Launch | LaunchedRank"  # the place of this process among those of a launcher
MakeScheduler = Callable[[int], SchedulerInterface]  # of a number of blocks, of all groups of layers together


class WarmRunner(Runner, Protocol):
    """A runner before the engine is ready."""

    def warm_up(self) -> None: ...

    def info(self) -> EngineInfo: ...

    def launches(self) -> StepLaunches: ...


def scheduler_settings(resolved: Resolved, store: BlockStore | None = None) -> SchedulerSettings:
    """store: keeps blocks outside the KV cache."""
    scheduler, cache = resolved.scheduler, resolved.cache
    has_prefixes = resolved.num_kept_states > 0 or not resolved.model_spec.has_states
    return SchedulerSettings(
        num_blocks=resolved.num_kv_blocks * resolved.cache_groups.num_groups,
        windows=resolved.cache_groups.windows,
        block_size=cache.block_size,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_model_len=resolved.model.max_model_len,
        max_prefill_share=scheduler.max_prefill_share,
        step_sizes=mixed_buckets(scheduler.max_num_batched_tokens) if scheduler.cuda_graph_sizes else (),
        enable_prefix_caching=cache.enable_prefix_caching and has_prefixes,
        num_kept_states=resolved.num_kept_states,
        retention_interval=max(1, cache.prefix_cache_retention_interval),
        prefix_caching_hash_algo=cache.prefix_caching_hash_algo,
        enable_chunked_prefill=scheduler.enable_chunked_prefill,
        max_num_partial_prefills=scheduler.max_num_partial_prefills,
        max_long_partial_prefills=scheduler.max_long_partial_prefills,
        long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
        scheduling_policy=scheduler.scheduling_policy,
        max_queued_requests=scheduler.max_queued_requests,
        max_queued_tokens=scheduler.max_queued_tokens,
        eos_token_ids=resolved.model_files.eos_token_ids,
        seed=resolved.model.seed,
        store=store,
        costs=_costs(resolved) if resolved.observability.enable_mfu_metrics else None,
        block_metrics_sample=resolved.observability.block_metrics_sample,
        records_block_events=resolved.kv_events.is_publishing,
        num_stages=resolved.num_stages if scheduler.async_scheduling else 1,  # else one step is in flight
        step_token_limits=resolved.observability.buckets("iteration_tokens", STEP_TOKENS),
    )


def _costs(resolved: Resolved) -> StepCosts:
    model, cache = resolved.model, resolved.cache
    return step_costs(resolved.model_spec, model.dtype, cache.kv_cache_dtype, resolved.memory.weights_bytes)


def join_launcher(resolved: Resolved) -> tuple[Resolved, Launched | None]:
    """The place of this process among those that an external launcher has started, and the values of rank 0.

    None, and the same values, without one. Raises NotLaunched, JoinRefused or OSError.
    """
    if resolved.parallel.distributed_executor_backend != "external_launcher":
        return resolved, None
    launch = launch_of(resolved.parallel)
    if launch.rank == 0:
        return resolved, launch
    from .launched.following import LaunchedRank

    rank = LaunchedRank(resolved, launch)
    return rank.resolved, rank


@contextlib.contextmanager
def start_of(launched: Launched | None) -> Iterator[None]:
    """What follows `join_launcher`. The other ranks, which wait for this one, hear of a failure.

    Raises RankLost if the reason of a failure is another rank.
    """
    try:
        yield
    except BaseException as error:
        if launched is not None and not isinstance(launched, Launch):
            launched.cannot_start(error)
        raise


def build_core(
    resolved: Resolved,
    phase: Callable[[str], None] | None = None,
    *,
    may_compile_later: bool = False,
    rank_lost: Callable[[], None] = lambda: None,
    launched: Launched | None = None,
) -> EngineCore:
    """Load the model and warm it up. Classes that the deployment names are imported first.

    Args:
        phase: called with the name of each start-up phase as it begins.
        may_compile_later: C++ kernels that must be compiled replace torch while requests are served. For a server: with
            False the start waits for the compilation, so that all results are of the same kernels.
        rank_lost: called, in a thread, when another process of the model has ended; all further steps fail.
        launched: of `join_launcher`, for an external launcher.

    Raises PluginError, CannotPublish, RankLost, and what the runner raises: ModelFilesError, MemoryError, OSError
    without the device.
    """
    if launched is None and resolved.parallel.distributed_executor_backend == "external_launcher":
        check_serves(resolved.parallel)
    if not resolved.kv_events.is_publishing:
        return _load_core(resolved, phase, may_compile_later, rank_lost, launched)
    publisher = EventPublisher(resolved.kv_events.at_rank(resolved.parallel.ranks[0]))
    try:
        core = _load_core(resolved, phase, may_compile_later, rank_lost, launched)
        _publish_events(core, publisher, resolved)
    except BaseException:
        publisher.close()
        raise
    return core


def _publish_events(core: EngineCore, publisher: EventPublisher, resolved: Resolved) -> None:
    events = core.block_events
    if events is None:
        raise PluginError("`scheduler.scheduler_cls`: this scheduler records no `kv_events`; derive it from Scheduler")
    publisher.start(
        EventPayloads(
            block_size=resolved.cache.block_size,
            windows=resolved.cache_groups.windows,
            medium="CPU" if resolved.device.device == "cpu" else "GPU",
            encoding=resolved.kv_events.encoding,
            rank=resolved.parallel.ranks[0],
        )
    )
    core.publish_events(publisher)


def _load_core(
    resolved: Resolved,
    phase: Callable[[str], None] | None,
    may_compile_later: bool,
    rank_lost: Callable[[], None],
    launched: Launched | None,
) -> EngineCore:
    clock = PhaseClock(phase)
    clock.start("libraries")
    store = open_store(resolved)
    try:
        return _load_with(store, resolved, phase, may_compile_later, rank_lost, clock, launched)
    except BaseException:
        if store is not None:
            store.close()
        raise


def _load_with(
    store: BlockStore | None,
    resolved: Resolved,
    phase: Callable[[str], None] | None,
    may_compile_later: bool,
    rank_lost: Callable[[], None],
    clock: PhaseClock,
    launched: Launched | None,
) -> EngineCore:
    with named_by("scheduler.scheduler_cls"):
        make_scheduler = _scheduler_maker(resolved, store)
    with named_by("model.logits_processors"):
        settings = resolved.model.logits_processor_settings
        processors = install(resolved.model.logits_processors, settings, partial(_place_of_setting, resolved))
    grammars = _grammars(resolved)  # loads while the weights do
    parts = (resolved, phase, clock, processors, make_scheduler, grammars)
    if resolved.device.device != "cpu":
        if resolved.num_stages > 1:
            return _on_ranks(rank_lost, None, *parts)
        return _on_gpu(*parts) if resolved.parallel.num_ranks == 1 else _on_gpus(rank_lost, *parts)
    worker_class(resolved.parallel.worker_extension_cls)  # raises before weights are loaded
    if launched is not None and not isinstance(launched, Launch):
        return _on_launched_rank(launched, *parts)
    if resolved.parallel.num_ranks > 1:
        return _on_ranks(rank_lost, launched, *parts)
    return _on_cpu(may_compile_later, store, *parts)


def _grammars(resolved: Resolved) -> Grammars | None:
    """None without a tokenizer."""
    model = resolved.model
    if model.skip_tokenizer_init:
        return None
    vocab_size, eos_token_ids = resolved.model_spec.vocab_size, resolved.model_files.eos_token_ids

    def load() -> Backend:
        try:
            vocabulary, config = read_vocabulary(Path(model.tokenizer), model.tokenizer_mode)
            add_missing_tokens(vocabulary, config)
        except TokenizerError as error:
            raise GrammarError(str(error)) from None
        return Guidance(vocabulary, vocab_size, eos_token_ids)

    plans_alone = resolved.parallel.distributed_executor_backend != "external_launcher"
    return Grammars(load, vocab_size, eos_token_ids, waits=not plans_alone)


def _place_of_setting(resolved: Resolved, path: str) -> str:
    """Where a setting of a logits processor was written, `deploy.yaml:7:15`; all of them for a key that is missing."""
    option = "model.logits_processor_settings"
    return str(resolved.origins.get(f"{option}.{path}") or resolved.origin(option))


def _on_cpu(
    may_compile_later: bool,
    store: BlockStore | None,
    resolved: Resolved,
    phase: Callable[[str], None] | None,
    clock: PhaseClock,
    processors: Sequence[LogitsProcessor],
    make_scheduler: MakeScheduler,
    grammars: Grammars | None,
) -> EngineCore:
    _limit_spinning()
    kv_memory = reserve_kv_memory(resolved)
    scheduler = make_scheduler(resolved.num_kv_blocks * resolved.cache_groups.num_groups)
    with prefaulted_pages(resolved.memory.weights_bytes, kv_memory.touch_first):
        from .runner.loaded_model import load_on_cpu  # torch: takes a second, and is a phase of its own
        from .runner.model_runner import ModelRunner

    clock.stop()
    load = partial(load_on_cpu, kv_memory=kv_memory, may_compile_later=may_compile_later)
    runner = ModelRunner(resolved, phase, processors, load, grammars=grammars, store=store)
    steps = ThreadStepQueue(runner) if resolved.scheduler.async_scheduling else InlineStepQueue(runner)
    more: dict[str, Any] = {"free_cache": runner.free_cache, "caller": _workplace(resolved, 0, runner).call_alone}
    core = _core(resolved, runner, clock, scheduler, steps, grammars, store=store, **more)
    kv_memory.touch_in_background(IdleGap(_step_counter(core)))
    return core


def _on_ranks(
    rank_lost: Callable[[], None],
    launch: Launch | None,
    resolved: Resolved,
    phase: Callable[[str], None] | None,
    clock: PhaseClock,
    processors: Sequence[LogitsProcessor],
    make_scheduler: MakeScheduler,
    grammars: Grammars | None,
) -> EngineCore:
    """Rank 0 of several processes. It waits for kernels that must be compiled: all ranks need the same."""
    _limit_spinning()
    if resolved.parallel.nnodes > 1 or resolved.parallel.distributed_executor_backend in ("ray", "external_launcher"):
        import torch  # noqa: F401 (not in the phase that waits for other nodes)

        clock.start("nodes")
    others: RankProcesses
    leading: type[LeadingRunner] = LeadingRunner
    leading_stage: type[LeadingStageRunner] = LeadingStageRunner
    if launch is None:
        others = RankProcesses(resolved, rank_lost, clock.note)
    else:
        others = LaunchedProcesses(resolved, launch, clock.note)
        leading, leading_stage = LaunchedLeadingRunner, LaunchedLeadingStageRunner
    try:
        from .launched.calls import LaunchedCalls
        from .runner.model_runner import ModelRunner
        from .runner.rank_loading import rank_loading
        from .runner.stages import FirstStageRunner
        from .worker_calls import LeadingCalls

        clock.stop()
        loading = rank_loading(resolved, others.ranks_of, others.agree)
        load, how = loading.first, dict[str, Any](grammars=grammars, captures_steps=loading.captures_steps)
        how["sampler_of"] = partial(LeadingSampler, others=others)
        is_async = resolved.scheduler.async_scheduling
        runner: ModelRunner
        together: LeadingRunner
        steps: StepQueue[Any]
        if resolved.num_stages == 1:
            runner = ModelRunner(resolved, phase, processors, load, **how)
            together = leading(runner, others)
            steps = ThreadStepQueue(together) if is_async else InlineStepQueue(together)
        else:
            runner = first = FirstStageRunner(others.stage_link(), resolved, phase, processors, load, **how)
            together = staged = leading_stage(first, others)
            steps = DeviceStepQueue(staged, depth=resolved.num_stages) if is_async else InlineStepQueue(staged)
        others.wait_loaded()
        scheduler = make_scheduler(runner.loaded.cache.num_blocks)
        workplace = _workplace(resolved, 0, runner)
        calls: LeadingCalls | LaunchedCalls = LeadingCalls(workplace, others)
        if isinstance(others, LaunchedProcesses):
            calls = LaunchedCalls(workplace, others)
        parts = (resolved, together, clock, scheduler, steps, grammars)
        free_cache = together.free_cache if resolved.device.device == "cpu" else None
        more: dict[str, Any] = {"others": others, "free_cache": free_cache, "caller": calls.call}
        core = _core(*parts, expert_balance=lambda: runner.expert_balance, **more)
    except BaseException as error:
        if launch is not None:
            others.lose(f"rank 0 of the model could not start: {type(error).__name__}: {error}")
        others.close()
        if not isinstance(error, DeploymentError):
            others.check()  # it may have failed because another rank has
        raise
    return core


def _on_launched_rank(
    others: LaunchedRank,
    resolved: Resolved,
    phase: Callable[[str], None] | None,
    clock: PhaseClock,
    processors: Sequence[LogitsProcessor],
    make_scheduler: MakeScheduler,
    grammars: Grammars | None,
) -> EngineCore:
    """Another rank than 0 of those that a launcher has started. It plans as rank 0, and samples nothing."""
    _limit_spinning()
    from .following_sampler import FollowingSampler
    from .launched.calls import LaunchedCalls
    from .launched.following import LaunchedRunner, LaunchedStageRunner
    from .runner.loaded_model import load_later_stage, load_on_cpu
    from .runner.model_runner import ModelRunner
    from .runner.stages import FirstStageRunner, LaterStageRunner

    clock.stop()
    how: dict[str, Any] = {"sampler_of": lambda _: FollowingSampler(others)}
    load = partial(load_on_cpu, ranks_of=others.ranks_of)
    is_async = resolved.scheduler.async_scheduling
    together: LaunchedRunner | LaunchedStageRunner
    steps: StepQueue[Any]
    runner: ModelRunner | LaterStageRunner
    if resolved.num_stages == 1:
        runner = only = ModelRunner(resolved, phase, processors, load, **how)
        together = LaunchedRunner(only, others)
        steps = ThreadStepQueue(together) if is_async else InlineStepQueue(together)
    else:
        stage: FirstStageRunner | LaterStageRunner
        if others.stage:
            load_stage = partial(load_later_stage, stage=others.stage, ranks_of=others.ranks_of)
            stage = LaterStageRunner(resolved, others.stage, others.stage_link(), load_stage)
        else:
            stage = FirstStageRunner(others.stage_link(), resolved, phase, processors, load, **how)
        runner, together = stage, (staged := LaunchedStageRunner(stage, others))
        steps = DeviceStepQueue(staged, depth=resolved.num_stages) if is_async else InlineStepQueue(staged)
    others.send(Loaded())
    scheduler = make_scheduler(resolved.num_kv_blocks * resolved.cache_groups.num_groups)
    calls = LaunchedCalls(_workplace(resolved, others.rank, runner), others)
    return _core(resolved, together, clock, scheduler, steps, grammars, others=others, caller=calls.call)


def _on_gpu(
    resolved: Resolved,
    phase: Callable[[str], None] | None,
    clock: PhaseClock,
    processors: Sequence[LogitsProcessor],
    make_scheduler: MakeScheduler,
    grammars: Grammars | None,
) -> EngineCore:
    from .runner.cuda.device_runner import DeviceRunner
    from .runner.rank_loading import ignore_padding

    if is_interpreting():
        ignore_padding()
    clock.stop()
    runner = DeviceRunner(resolved, phase, processors, grammars=grammars)
    scheduler = make_scheduler(runner.num_blocks)  # the number that fits into the memory of the device
    steps = DeviceStepQueue(runner) if resolved.scheduler.async_scheduling else InlineStepQueue(runner)
    return _core(resolved, runner, clock, scheduler, steps, grammars, runner.idle)


def _on_gpus(
    rank_lost: Callable[[], None],
    resolved: Resolved,
    phase: Callable[[str], None] | None,
    clock: PhaseClock,
    processors: Sequence[LogitsProcessor],
    make_scheduler: MakeScheduler,
    grammars: Grammars | None,
) -> EngineCore:
    """Rank 0 of several processes with a GPU each, in one stage."""
    _limit_spinning()
    others = RankProcesses(resolved, rank_lost, clock.note)
    try:
        from .runner.cuda.device_runner import DeviceRunner
        from .runner.rank_loading import rank_loading

        clock.stop()
        how: dict[str, Any] = {"grammars": grammars, "sampler_of": partial(LeadingSampler, others=others)}
        load = rank_loading(resolved, others.ranks_of, others.agree).first
        runner = DeviceRunner(resolved, phase, processors, load, others=OtherDevices(others), **how)
        together = LeadingDeviceRunner(runner, others)
        others.wait_loaded()
        scheduler = make_scheduler(runner.num_blocks)
        is_async = resolved.scheduler.async_scheduling
        steps: StepQueue[Any] = DeviceStepQueue(together) if is_async else InlineStepQueue(together)
        return _core(resolved, together, clock, scheduler, steps, grammars, together.idle, others)
    except BaseException:
        others.close()
        others.check()  # it may have failed because another rank has
        raise


def _core(
    resolved: Resolved,
    runner: WarmRunner,
    clock: PhaseClock,
    scheduler: SchedulerInterface,
    steps: StepQueue[Any],
    grammars: Grammars | None,
    idle: Callable[[], bool] | None = None,
    others: OtherProcesses | None = None,
    free_cache: Callable[[], None] | None = None,
    store: BlockStore | None = None,
    caller: Caller | None = None,
    expert_balance: Callable[[], float | None] | None = None,
) -> EngineCore:
    with named_by("model.logits_processors"):  # those steps run no other code that the deployment names
        runner.warm_up()
    if grammars is not None:
        grammars.wait_loaded()
    info = runner.info()
    return EngineCore(
        scheduler,
        steps,
        replace(info, phases={**clock.seconds, **info.phases}),
        idle=idle,
        processor_pattern=resolved.model.logits_processor_pattern,
        grammars=grammars,
        logs_steps=resolved.observability.enable_logging_iteration_details,
        profiler=_profiler(resolved.observability),
        launches=runner.launches if resolved.observability.cudagraph_metrics else None,
        expert_balance=expert_balance if resolved.parallel.enable_eplb else None,
        others=others,
        free_cache=free_cache,
        store=store,
        caller=caller,
    )


def _workplace(resolved: Resolved, rank: int, runner: ModelRunner | LaterStageRunner) -> Workplace:
    parallel = resolved.parallel
    kind = worker_class(parallel.worker_extension_cls)
    model = runner.rank_model(rank % parallel.tensor_parallel_size)
    return Workplace(kind, parallel.worker_extension_cls, rank, parallel.num_ranks, model)


def _profiler(observability: ObservabilityConfig) -> Profiler | None:
    from .kernels import spans
    from .profiler import Profiler

    spans.is_marking = observability.enable_layerwise_nvtx_tracing
    settings = observability.profiler_config
    return Profiler.of(settings) if settings else None


def _step_counter(core: EngineCore) -> Callable[[], int | None]:
    core_of = weakref.ref(core)  # a weak reference: counting must not keep the engine alive

    def count() -> int | None:
        core = core_of()
        return None if core is None or core.is_stepping else core.num_steps

    return count


def _scheduler_maker(resolved: Resolved, store: BlockStore | None) -> MakeScheduler:
    """The class is imported now, and instantiated when the number of blocks is known."""
    settings, path = scheduler_settings(resolved, store), resolved.scheduler.scheduler_cls
    if path == "auto":
        return lambda num_blocks: Scheduler(replace(settings, num_blocks=num_blocks))
    found = import_class(path, MEMBERS)

    def make_named(num_blocks: int) -> SchedulerInterface:
        with named_by("scheduler.scheduler_cls"):
            named: SchedulerInterface = make(path, found, replace(settings, num_blocks=num_blocks))
        return named

    return make_named


def _limit_spinning() -> None:
    """Let OpenMP threads spin for about 50 us only between parallel regions; read when torch loads libgomp.

    By default they spin for milliseconds, and occupy the cores that the API process and the main thread need:
    a 5 M model on two busy cores took 43 ms per token with a spin count of 20 000, 2 ms with 1000.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def exit_code_of(error: BaseException) -> int:
    """Exit code of the command after a failed start: 3 model files, 4 environment, 78 configuration, else 1."""
    if isinstance(error, DeploymentError | RankLost):
        return error.exit_code
    return EXIT_ENVIRONMENT if isinstance(error, MemoryError | OSError) else EXIT_FAILED
