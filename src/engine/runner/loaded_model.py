"""LoadedModel: the kernels, weights and KV cache of a deployment on its device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...config import Resolved, read_machine_spec
from ...config.cpu_features import NoKernels, find_compiler
from ...config.cpu_library import LibrarySpec
from ...model.quantised import OWN_CODES, scheme_of
from ..collectives import Ranks, SharedExperts, attending_in_parts, attending_to_all
from ..collectives.gloo import GlooRanks
from ..kernels import KernelSet, select_kernels
from ..kernels.cpu.background import BackgroundCompilation
from ..kernels.cpu.library import CpuLibrary, is_loadable, load_library
from ..layers.loading import Loadable
from ..lora.adapters import Adapters
from ..models.decoder import LaterStage
from ..models.model import Model
from ..models.registry import make_later_stage, make_model
from .context_part import ContextPart
from .kv_cache import KVCache, kv_dtype
from .kv_memory import KVMemory, reserve_kv_memory
from .load_draft import load_draft
from .loaded_draft import LoadedDraft
from .loading import load_weights
from .measure import PhaseClock
from .sharded_state import load_state
from .sleeping_memory import SleepingMemory
from .state_cache import StateCache, Zeros

RanksOf = Callable[[KernelSet], Ranks]
PromptRanksOf = Callable[[], GlooRanks | None]
ReplicasOf = Callable[[KernelSet], SharedExperts]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What a process has of a model: the layers of a stage, those of the first stage with the ends of the model."""

    device: torch.device
    kernels: KernelSet
    model: Model | LaterStage
    cache: KVCache
    compilation: BackgroundCompilation | None = None  # of kernels that replace these
    ranks: Ranks | None = None  # that compute the model together
    prompt_ranks: GlooRanks | None = None  # that compute other tokens of the same prompts
    replicas: SharedExperts | None = None  # that have its other experts
    sleeping: SleepingMemory | None = None  # of a device, if the engine may sleep
    draft: LoadedDraft | None = None  # what drafts tokens for the model
    adapters: Adapters | None = None  # None: requests have none

    def free_memory(self) -> None:
        """Give back what only steps need. Raises MemoryError, and has all of it still."""
        self.cache.free()
        if self.sleeping is not None:
            self.sleeping.give_back()

    def take_memory(self) -> None:
        """Take it again. Raises MemoryError, and has none of it then."""
        if self.sleeping is not None:
            self.sleeping.take()

    @property
    def whole(self) -> Model:
        """The model with its ends. Only of the first stage."""
        assert not isinstance(self.model, LaterStage), "this stage has only layers"
        return self.model


def load_on_cpu(
    resolved: Resolved,
    phases: PhaseClock,
    kv_memory: KVMemory | None = None,
    *,
    may_compile_later: bool = False,
    ranks_of: RanksOf | None = None,
    prompt_ranks_of: PromptRanksOf = lambda: None,
    replicas_of: ReplicasOf | None = None,
) -> LoadedModel:
    """Loads the model and touches the part of the KV cache that the first requests need.

    Args:
        kv_memory: of the KV cache; None reserves it now.
        may_compile_later: kernels that must be compiled are compiled in the background; the model is loaded for torch.
        ranks_of: makes the ranks that compute the model together; None if only this process computes it.
        prompt_ranks_of: makes those that compute other tokens of the same prompts, if there are any.
        replicas_of: makes those that share the experts of the model; None if this one has all.

    Raises ModelFilesError for weights that do not fit the model, MemoryError for a cache that does not fit into memory.
    """
    device = torch.device("cpu")
    compilation: BackgroundCompilation | None = None

    def load(spec: LibrarySpec) -> CpuLibrary:
        nonlocal compilation
        if may_compile_later and not is_loadable(spec) and _may_begin_with_torch(resolved):
            find_compiler()
            compilation = BackgroundCompilation(spec)
            raise NoKernels(str(compilation))
        return load_library(spec, report=lambda progress: phases.note(f"compiling {progress}"))

    phases.start("kernels")
    kernels = _kernels(resolved, load)
    ranks = None if ranks_of is None else ranks_of(kernels)
    kernels = _in_parts(kernels, resolved, ranks)
    prompt_ranks = prompt_ranks_of()
    if prompt_ranks is not None:
        kernels = attending_to_all(kernels, prompt_ranks)
    replicas = None if replicas_of is None else replicas_of(kernels)
    model = load_model(resolved, phases, device, kernels, ranks=ranks, replicas=replicas)
    cache = _kv_cache(resolved, phases, kv_memory, ranks=ranks)
    has_draft = ranks is None or not ranks.rank  # else rank 0 sends what it has drafted
    draft = load_draft(resolved, model, kernels, cache.num_blocks) if has_draft else None
    return LoadedModel(device, kernels, model, cache, compilation, ranks, prompt_ranks, replicas, draft=draft)


def load_later_stage(
    resolved: Resolved, phases: PhaseClock, *, stage: int, ranks_of: RanksOf | None = None
) -> LoadedModel:
    """Load another stage than the first. See load_on_cpu. Kernels that must be compiled are waited for."""
    device = torch.device("cpu")
    phases.start("kernels")
    kernels = _kernels(resolved, load_library)
    ranks = None if ranks_of is None else ranks_of(kernels)
    kernels = _in_parts(kernels, resolved, ranks)
    phases.start("weights")
    layers = make_later_stage(resolved, stage, kernels, device, ranks)
    load_weights(layers, resolved, ranks=ranks)
    return LoadedModel(device, kernels, layers, _kv_cache(resolved, phases, None, stage, ranks), ranks=ranks)


def _in_parts(kernels: KernelSet, resolved: Resolved, ranks: Ranks | None) -> KernelSet:
    num_parts = resolved.topology.num_context_parts
    return kernels if ranks is None or num_parts == 1 else attending_in_parts(kernels, ranks, num_parts)


def _kv_cache(
    resolved: Resolved, phases: PhaseClock, memory: KVMemory | None, stage: int = 0, ranks: Ranks | None = None
) -> KVCache:
    """memory: None reserves it. The part that the first requests need is touched."""
    phases.start("kv cache")
    memory = memory or reserve_kv_memory(resolved, stage)
    others = resolved.memory.state_bytes + resolved.memory.drafted_bytes
    memory.check_room(read_machine_spec().available_memory_bytes - others)
    memory.touch_first()
    part = None
    if ranks is not None and (count := resolved.topology.num_context_parts) > 1:
        run = resolved.parallel.cp_kv_cache_interleave_size
        part = ContextPart(ranks.rank % count, count, run, resolved.cache.block_size)
    states = states_of(resolved, stage=stage)
    return kv_cache_of(resolved, resolved.num_kv_blocks, states, memory, stage=stage, part=part)


def load_weights_on_cpu(resolved: Resolved, phases: PhaseClock) -> tuple[KernelSet, Model]:
    """The model as `load_on_cpu` loads it, without a KV cache. Raises ModelFilesError."""
    phases.start("kernels")
    kernels = _kernels(
        resolved, lambda spec: load_library(spec, report=lambda progress: phases.note(f"compiling {progress}"))
    )
    return kernels, load_model(resolved, phases, torch.device("cpu"), kernels)


def _kernels(resolved: Resolved, load: Callable[[LibrarySpec], CpuLibrary]) -> KernelSet:
    activations = resolved.model.activation_quantization
    kernels = select_kernels(
        "cpu",
        getattr(torch, resolved.model.dtype),
        _head_dims(resolved),
        # A model that keeps nothing has no cache, whatever its format would be.
        kv_dtype=kv_dtype(resolved.cache.kv_cache_dtype) if resolved.model_spec.keeps.tensors else None,
        is_eager=resolved.model.enforce_eager,
        quantization=_quantization(resolved),
        activations=None if activations == "none" else activations,
        rounds_as_stored=activations != "none",
        batch_invariant=resolved.model.batch_invariant,
        load=load,
    )
    kernels.set_num_threads(resolved.device.num_threads)
    return kernels


def _head_dims(resolved: Resolved) -> tuple[int, ...]:
    draft = resolved.model_files.draft
    own = () if draft is None else draft.draft.spec.head_dims
    return tuple(dict.fromkeys((*resolved.model_spec.head_dims, *own)))


def _quantization(resolved: Resolved) -> str | None:
    """What decides which kernels for quantised weights are needed."""
    model = resolved.model
    keeps_codes = resolved.model_files.own_codes and not model.enforce_eager
    return scheme_of(model.quantization) or (OWN_CODES if keeps_codes else None)


def _may_begin_with_torch(resolved: Resolved) -> bool:
    """Whether torch may compute until the kernels are compiled. It may not if results must be the same in any batch;
    with quantised weights, whose codes the kernels keep in another order; with a sharded state, which is in the order
    of the kernels; with a network that drafts, which reads the layers; or without room for weights in torch's form,
    which is larger."""
    model_spec, model, files = resolved.model_spec, resolved.model, resolved.model_files
    if (
        model.batch_invariant
        or _quantization(resolved) is not None
        or files.state is not None
        or files.draft is not None
    ):
        return False
    weights = resolved.model_files.weights_bytes(model.dtype)
    largest = (
        model_spec.vocab_size * model_spec.hidden_size * getattr(torch, resolved.model.dtype).itemsize
    )  # exists twice
    needed = weights + largest + resolved.memory.state_bytes + resolved.memory.kv_cache_bytes
    return bool(needed < read_machine_spec().available_memory_bytes)


def with_library(loaded: LoadedModel, resolved: Resolved, library: CpuLibrary) -> LoadedModel:
    """The same weights and KV cache, with the kernels of a library. `loaded` can no longer be used."""
    kernels = _kernels(resolved, lambda _: library)
    model = make_model(resolved, kernels, loaded.device)
    model.take_weights(loaded.whole)
    return LoadedModel(loaded.device, kernels, model, loaded.cache, adapters=loaded.adapters)


def load_model(
    resolved: Resolved,
    phases: PhaseClock,
    device: torch.device,
    kernels: KernelSet,
    watch: Callable[[Model], Callable[[Loadable], None]] | None = None,
    ranks: Ranks | None = None,
    replicas: SharedExperts | None = None,
) -> Model:
    """The model with its weights. Raises ModelFilesError for weights that do not fit it.

    watch: called with the model before its weights are loaded; what it returns is called with each part that is.
    """
    phases.start("weights")
    model = make_model(resolved, kernels, device, ranks, replicas)
    is_watched = resolved.load.use_tqdm_on_load and resolved.machine.has_terminal
    progress: Callable[[float], None] | None = phases.progress if is_watched else None
    if resolved.model_files.state is None:
        load_weights(model, resolved, progress, None if watch is None else watch(model), ranks)
    else:
        load_state(model, resolved, kernels, progress)
    return model


def states_of(resolved: Resolved, zeros: Zeros = torch.zeros, stage: int = 0) -> StateCache | None:
    """The recurrent states of a stage; None if it has none. Raises what StateCache raises."""
    spec = resolved.stage_spec(stage)
    if not spec.has_states:
        return None
    dtype, sums_dtype = resolved.model.dtype, resolved.cache.mamba_ssm_cache_dtype
    return StateCache(spec, resolved.memory.num_states, getattr(torch, dtype), getattr(torch, sums_dtype), zeros)


def kv_cache_of(
    resolved: Resolved,
    num_blocks: int,
    states: StateCache | None,
    memory: KVMemory | None = None,
    zeros: Zeros | None = None,
    stage: int = 0,
    part: ContextPart | None = None,
) -> KVCache:
    """A cache of `num_blocks` blocks for each group of layers of a stage. Raises what KVCache raises."""
    cache, groups = resolved.cache, resolved.stage_groups(stage)
    return KVCache(
        groups,
        num_blocks * groups.num_groups,
        cache.block_size,
        resolved.rank_spec.keeps.tensors,
        kv_dtype(cache.kv_cache_dtype),
        memory,
        zeros,
        states,
        [None if keeps is None else keeps.tensors for keeps in resolved.stage_spec(stage).kept_by_layer],
        part,
    )
