"""LoadedModel: the kernels, weights and KV cache of a deployment on its device, which is what steps compute with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...config import Resolved, read_machine_facts
from ..kernels import KernelSet, select_kernels
from ..models.decoder import Decoder
from ..models.registry import model_class
from .kv_cache import KVCache, kv_dtype
from .kv_memory import KVMemory, reserve_kv_memory
from .loading import load_weights
from .measure import PhaseClock


@dataclass(frozen=True, slots=True)
class LoadedModel:
    device: torch.device
    kernels: KernelSet
    model: Decoder
    cache: KVCache


def load_on_cpu(resolved: Resolved, phases: PhaseClock, kv_memory: KVMemory | None = None) -> LoadedModel:
    """Loads the model and takes the part of the KV cache that the first requests need.

    kv_memory: for the KV cache; None reserves it now.
    Raises ModelFilesError for weights that do not fit the model, MemoryError for a cache that cannot be had.
    """
    device = torch.device("cpu")
    phases.start("kernels")
    kernels = select_kernels(
        device,
        getattr(torch, resolved.model.dtype),
        resolved.facts.head_dim,
        kv_dtype=kv_dtype(resolved.cache.kv_cache_dtype),
        is_eager=resolved.model.enforce_eager,
        quantization=resolved.model.quantization,
        batch_invariant=resolved.model.batch_invariant,
    )
    kernels.set_num_threads(resolved.device.num_threads)
    model = load_model(resolved, phases, device, kernels)
    phases.start("kv cache")
    kv_memory = kv_memory or reserve_kv_memory(resolved)
    kv_memory.check_room(read_machine_facts().available_memory_bytes)
    kv_memory.touch_first()
    return LoadedModel(device, kernels, model, kv_cache_of(resolved, resolved.num_kv_blocks, kv_memory))


def load_model(resolved: Resolved, phases: PhaseClock, device: torch.device, kernels: KernelSet) -> Decoder:
    """The model with its weights. Raises ModelFilesError for weights that do not fit it."""
    phases.start("weights")
    dtype, model_len = getattr(torch, resolved.model.dtype), resolved.model.max_model_len
    model = model_class(resolved.facts)(resolved.facts, kernels, model_len, dtype, device, resolved.model.quantization)
    is_watched = resolved.load.use_tqdm_on_load and resolved.machine.has_terminal
    progress: Callable[[float], None] | None = phases.progress if is_watched else None
    load_weights(model, resolved, progress)
    return model


def kv_cache_of(
    resolved: Resolved, num_blocks: int, memory: KVMemory | None = None, device: torch.device | None = None
) -> KVCache:
    """A cache of so many blocks. Raises what KVCache raises."""
    facts, cache = resolved.facts, resolved.cache
    shape = (facts.num_layers, num_blocks, facts.num_kv_heads, cache.block_size, facts.head_dim)
    return KVCache(*shape, kv_dtype(cache.kv_cache_dtype), memory, device)
