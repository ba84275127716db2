"""Makes an EngineCore that can serve from a Resolved, and maps failures of the start to exit codes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ...config import DeploymentError, Resolved
from ...config.exit_codes import EXIT_ENVIRONMENT, EXIT_FAILED
from ...vocabulary import TokenizerError, add_missing_tokens, read_vocabulary
from ..kv_events.payloads import EventPayloads
from ..kv_events.publisher import EventPublisher
from ..loop.engine_core import EngineCore
from ..memory.neighbours import Neighbours
from ..plugins import PluginError, named_by
from ..ranks.followers import RankLost
from ..ranks.launched.launch import Launch, check_serves, launch_of
from ..runner.measure import PhaseClock
from ..sampling.named_processors import install
from ..stores.delayed_saves import DelayedSaves
from ..stores.open_store import open_store
from ..structured.backend import Backend, GrammarError
from ..structured.grammars import Grammars
from ..structured.guidance import Guidance
from ..worker import worker_class
from .beside_replicas import beside_replicas
from .on_cpu import on_cpu
from .on_gpus import on_gpu, on_gpus
from .on_launched_rank import on_launched_rank
from .on_ranks import on_ranks
from .prepared import Prepared
from .scheduler import scheduler_maker

if TYPE_CHECKING:
    from ..ranks.launched.following import LaunchedRank  # imports torch

Launched: TypeAlias = "Launch | LaunchedRank"  # the place of this process among those of a launcher


def join_launcher(resolved: Resolved) -> tuple[Resolved, Launched | None]:
    """The place of this process among those that an external launcher has started, and the values of rank 0.

    None, and the same values, without one. Raises NotLaunched, JoinRefused or OSError.
    """
    if resolved.parallel.distributed_executor_backend != "external_launcher":
        return resolved, None
    launch = launch_of(resolved.parallel)
    if launch.rank == 0:
        return resolved, launch
    from ..ranks.launched.following import LaunchedRank

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
    neighbours: Neighbours | None = None,
) -> EngineCore:
    """Load the model and warm it up. Classes that the deployment names are imported first.

    Args:
        phase: called with the name of each start-up phase as it begins.
        may_compile_later: C++ kernels that must be compiled replace torch while requests are served. For a server: with
            False the start waits for the compilation, so that all results are of the same kernels.
        rank_lost: called, in a thread, when another process of the model has ended; all further steps fail.
        launched: of `join_launcher`, for an external launcher.
        neighbours: replicas that share the experts of the model with this one.

    Raises PluginError, CannotPublish, RankLost, and what the runner raises: ModelFilesError, MemoryError, OSError
    without the device.
    """
    if launched is None and resolved.parallel.distributed_executor_backend == "external_launcher":
        check_serves(resolved.parallel)
    if not resolved.kv_events.is_publishing:
        with _prepared(resolved, phase) as prepared:
            return _started(prepared, may_compile_later, rank_lost, launched, neighbours)
    publisher = EventPublisher(resolved.kv_events.at_rank(resolved.parallel.ranks[0]))
    try:
        with _prepared(resolved, phase) as prepared:
            core = _started(prepared, may_compile_later, rank_lost, launched, neighbours)
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


@contextlib.contextmanager
def _prepared(resolved: Resolved, phase: Callable[[str], None] | None) -> Iterator[Prepared]:
    """Closed if what follows fails."""
    clock = PhaseClock(phase)
    clock.start("libraries")
    store = open_store(resolved)
    if store is not None and resolved.device.device != "cpu":
        store = DelayedSaves(store)
    try:
        with named_by("scheduler.scheduler_cls"):
            make_scheduler = scheduler_maker(resolved, store)
        with named_by("model.logits_processors"):
            settings = resolved.model.logits_processor_settings
            processors = install(resolved.model.logits_processors, settings, partial(_place_of_setting, resolved))
        grammars = _grammars(resolved)  # loads while the weights do
        yield Prepared(resolved, phase, clock, processors, make_scheduler, grammars, store)
    except BaseException:
        if store is not None:
            store.close()
        raise


def _started(
    prepared: Prepared,
    may_compile_later: bool,
    rank_lost: Callable[[], None],
    launched: Launched | None,
    neighbours: Neighbours | None,
) -> EngineCore:
    resolved = prepared.resolved
    if resolved.device.device != "cpu":
        if resolved.num_stages > 1:
            return on_ranks(prepared, rank_lost, None)
        return on_gpu(prepared) if resolved.parallel.num_ranks == 1 else on_gpus(prepared, rank_lost)
    worker_class(resolved.parallel)  # raises before weights are loaded
    if neighbours is not None:
        return beside_replicas(prepared, neighbours)
    if launched is not None and not isinstance(launched, Launch):
        return on_launched_rank(prepared, launched)
    if resolved.parallel.num_ranks > 1:
        return on_ranks(prepared, rank_lost, launched)
    return on_cpu(prepared, may_compile_later=may_compile_later)


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


def exit_code_of(error: BaseException) -> int:
    """Exit code of the command after a failed start: 3 model files, 4 environment, 78 configuration, else 1."""
    if isinstance(error, DeploymentError | RankLost):
        return error.exit_code
    return EXIT_ENVIRONMENT if isinstance(error, MemoryError | OSError) else EXIT_FAILED
