"""Makes an EngineCore that can serve from a Resolved, and maps failures of the start to exit codes."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...config import DeploymentError, ModelFiles, Resolved
from ...config.exit_codes import EXIT_ENVIRONMENT, EXIT_FAILED
from ...config.schema.observability import ObservabilityConfig
from ...model.through_transformers import is_tested
from ...vocabulary import TokenizerError, add_missing_tokens, read_vocabulary
from ..core import Scheduler, SchedulerInterface
from ..core.adapter_slots import AdapterSettings
from ..core.settings import DraftSettings
from ..host.neighbours import Neighbours
from ..kv_events.payloads import EventPayloads
from ..kv_events.publisher import EventPublisher
from ..kv_stores.open_store import open_store
from ..loop.adapter_reader import AdapterReader
from ..loop.engine_core import EngineCore
from ..lora.settings import LoraSettings
from ..plugins import PluginError, named_by
from ..ranks.followers import RankLost
from ..ranks.processes import RankProcesses
from ..runner.measure import PhaseClock
from ..sampling.named_processors import install
from ..spec_decode.step_times import DraftTimes
from ..spec_decode.two_vocabularies import shared_tokens_of
from ..structured.backend import Backend, GrammarError
from ..structured.grammars import Grammars
from ..structured.guidance import Guidance
from ..worker import worker_class
from .launcher import LaunchedPlace, check_serves
from .local import beside_replicas, on_cpu, on_gpu
from .prepared import Prepared
from .process import ProcessExecutor
from .ranks import on_ranks
from .scheduler import MakeScheduler, adapter_settings, draft_settings, scheduler_maker

if TYPE_CHECKING:
    from ..runner.profiler import Profiler


def build_core(
    resolved: Resolved,
    phase: Callable[[str], None] | None = None,
    *,
    may_compile_later: bool = False,
    rank_lost: Callable[[], None] = lambda: None,
    launched: LaunchedPlace | None = None,
    neighbours: Neighbours | None = None,
) -> EngineCore:
    """Load the model and warm it up. Classes that the deployment names are imported first.

    Args:
        phase: called with the name of each start-up phase as it begins.
        may_compile_later: whether C++ kernels that must be compiled replace torch while requests are served, as in a
            server. False: the start waits for the compilation, so that one set of kernels computes all results.
        rank_lost: called, in a thread, when another process of the model has ended; all further steps fail.
        launched: the place that `join_launcher` has returned.
        neighbours: replicas that share the experts of the model with this one.

    Raises PluginError, CannotPublish, RankLost, and what the runner raises: ModelFilesError, MemoryError, OSError
    without the device.
    """
    if launched is None and resolved.topology.is_launched:
        check_serves(resolved.parallel)
    publisher = None
    if resolved.kv_events.is_publishing:
        publisher = EventPublisher(resolved.kv_events.at_rank(resolved.topology.replicas[0]))
    try:
        with _prepared(resolved, phase) as prepared:
            times = DraftTimes()
            drafting = draft_settings(resolved, times)
            reader = AdapterReader(waits=resolved.topology.is_launched)
            make_scheduler = _scheduler_maker(prepared, drafting, adapter_settings(resolved, reader))
            scheduler = None
            if resolved.device.device == "cpu":  # the number of blocks is decided: a class fails before weights load
                scheduler = make_scheduler(resolved.num_kv_blocks * resolved.cache_groups.num_groups)
            shared_tokens_of(resolved)  # vocabularies that cannot be used are refused before weights load
            if scheduler is not None:
                _check_adapters(resolved, scheduler)
            executor = _loaded(prepared, may_compile_later, rank_lost, launched, neighbours)
            reader.store = executor.adapters
            try:
                if scheduler is None:
                    scheduler = make_scheduler(executor.num_blocks)
                core = _core(prepared, executor, scheduler, reader, None if drafting is None else times)
            except BaseException as error:
                executor.abandon(error)
                raise
        if publisher is not None:
            _publish_events(core, publisher, resolved)
    except BaseException:
        if publisher is not None:
            publisher.close()
        raise
    return core


def _core(
    prepared: Prepared,
    executor: ProcessExecutor,
    scheduler: SchedulerInterface,
    reader: AdapterReader,
    times: DraftTimes | None,
) -> EngineCore:
    """Warm the executor up, and make the engine that it computes for. times: are measured; None without drafts."""
    with named_by("model.logits_processors"):  # those steps run no other code that the deployment names
        executor.warm_up()
        if times is not None:
            prepared.clock.start("drafts")
            executor.measure(times)
            prepared.clock.stop()
    if prepared.grammars is not None:
        prepared.grammars.wait_loaded()
    info, observability = executor.info(), prepared.resolved.observability
    core = EngineCore(
        scheduler,
        executor,
        replace(
            info,
            kernels=info.kernels | ({} if times is None else _drafts_table(prepared.resolved, times)),
            phases={**prepared.clock.seconds, **info.phases},
        ),
        processor_pattern=prepared.resolved.model.logits_processor_pattern,
        grammars=prepared.grammars,
        logs_steps=observability.enable_logging_iteration_details,
        profiler=profiler_of(observability),
        store=prepared.store,
        adapters=reader,
    )
    executor.serves(_step_counter(core))
    return core


def _check_adapters(resolved: Resolved, scheduler: SchedulerInterface) -> None:
    """Raises PluginError for a scheduler that would compute requests without their adapters."""
    if LoraSettings.of(resolved) is not None and not isinstance(scheduler, Scheduler):
        raise PluginError(
            "`scheduler.scheduler_cls`: this scheduler plans no adapters (`lora.enable_lora`); derive it from Scheduler"
        )


def _drafts_table(resolved: Resolved, times: DraftTimes) -> dict[str, str]:
    """The row of the start-up table about drafts."""
    own, draft = resolved.speculative, resolved.model_files.draft
    most, steps = own.num_speculative_tokens, times.steps
    network = f"{own.model or 'the checkpoint of the model'} ({own.method})"
    source = "the text of a request" if draft is None else network
    said = f"at most {most} tokens, from {source}; a step of {1 + most} takes "
    said += f"{float(steps.seconds(1, most) / steps.seconds(1)):.2f} times one of 1"
    if draft is not None:
        said += f", a draft {float(times.drafts.seconds(1) / steps.seconds(1)):.2f}"
    return {"drafts": said}


def _step_counter(core: EngineCore) -> Callable[[], int | None]:
    core_of = weakref.ref(core)  # a weak reference: counting must not keep the engine alive

    def count() -> int | None:
        core = core_of()
        return None if core is None or core.is_stepping else core.num_steps

    return count


def profiler_of(observability: ObservabilityConfig) -> Profiler | None:
    """The profiler; None without `profiler_config`. Also turns the NVTX marks of layers in this process on or off."""
    from ..kernels import spans
    from ..runner.profiler import Profiler

    spans.is_marking = observability.enable_layerwise_nvtx_tracing
    settings = observability.profiler_config
    return Profiler.of(settings) if settings else None


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
            rank=resolved.topology.replicas[0],
        )
    )
    core.publish_events(publisher)


def needs_probe(files: ModelFiles) -> bool:
    """Whether the model runs on modules of the library that no test of this build has run."""
    return files.implementation == "transformers" and files.code is None and not is_tested(files.spec)


@contextlib.contextmanager
def _prepared(resolved: Resolved, phase: Callable[[str], None] | None) -> Iterator[Prepared]:
    """What the workers and the engine need before weights are loaded. The store is closed if the block fails."""
    clock = PhaseClock(phase)
    clock.start("libraries")
    if needs_probe(resolved.model_files):
        from .probe import probe  # imports torch

        clock.start("probe")
        probe(resolved.model_files)
    store = open_store(resolved)
    try:
        with named_by("model.logits_processors"):
            settings = resolved.model.logits_processor_settings
            processors = install(resolved.model.logits_processors, settings, partial(_place_of_setting, resolved))
        grammars = _grammars(resolved)  # loads while the weights do
        yield Prepared(resolved, phase, clock, processors, grammars, store)
    except BaseException:
        if store is not None:
            store.close()
        raise


def _scheduler_maker(
    prepared: Prepared, drafting: DraftSettings | None, adapters: AdapterSettings | None
) -> MakeScheduler:
    with named_by("scheduler.scheduler_cls"):
        return scheduler_maker(prepared.resolved, prepared.store, drafting, adapters)


def _loaded(
    prepared: Prepared,
    may_compile_later: bool,
    rank_lost: Callable[[], None],
    launched: LaunchedPlace | None,
    neighbours: Neighbours | None,
) -> ProcessExecutor:
    resolved, start = prepared.resolved, partial(RankProcesses, lost=rank_lost)
    if resolved.device.device != "cpu":
        return on_gpu(prepared) if resolved.topology.num_ranks == 1 else on_ranks(prepared, start)
    worker_class(resolved.parallel)  # raises before weights are loaded
    if neighbours is not None:
        return beside_replicas(prepared, neighbours)
    if launched is not None:
        return launched.executor(prepared)
    if resolved.topology.num_ranks > 1:
        return on_ranks(prepared, start)
    return on_cpu(prepared, may_compile_later=may_compile_later)


def _grammars(resolved: Resolved) -> Grammars | None:
    """The grammars of a model; None without a tokenizer, and of a model that generates nothing."""
    model = resolved.model
    if model.skip_tokenizer_init or not resolved.model_spec.generates:
        return None
    vocab_size, eos_token_ids = resolved.model_spec.vocab_size, resolved.model_files.eos_token_ids

    def load() -> Backend:
        try:
            vocabulary, config = read_vocabulary(Path(model.tokenizer), model.tokenizer_mode)
            add_missing_tokens(vocabulary, config)
        except TokenizerError as error:
            raise GrammarError(str(error)) from None
        return Guidance(vocabulary, vocab_size, eos_token_ids)

    return Grammars(load, vocab_size, eos_token_ids, waits=resolved.topology.is_launched)


def _place_of_setting(resolved: Resolved, path: str) -> str:
    """The place where a logits processor's setting was written, `deploy.yaml:7:15`. For a missing key: the place of all
    settings."""
    option = "model.logits_processor_settings"
    return str(resolved.origins.get(f"{option}.{path}") or resolved.origin(option))


def exit_code_of(error: BaseException) -> int:
    """Exit code of the command after a failed start: 3 model files, 4 environment, 78 configuration, else 1."""
    if isinstance(error, DeploymentError | RankLost):
        return error.exit_code
    return EXIT_ENVIRONMENT if isinstance(error, MemoryError | OSError) else EXIT_FAILED
