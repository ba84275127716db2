"""EngineInfo of a runner that has its weights and its KV cache."""

from __future__ import annotations

from collections.abc import Mapping

from ...config import Resolved
from ..api import EngineInfo
from .kv_cache import KVCache
from .measure import process_memory


def engine_info(
    resolved: Resolved,
    cache: KVCache,
    *,
    weights_bytes: int,
    device: str,
    kernels: Mapping[str, str],
    phases: Mapping[str, float],
) -> EngineInfo:
    resident = peak = None
    if (held := process_memory()) is not None:
        states = cache.states
        reserved = states.num_bytes if states is not None and device == "cpu" else 0
        resident = held[0] + cache.num_untouched + reserved
        peak = max(resident, held[1])
    return EngineInfo(
        model=resolved.model.model,
        max_model_len=resolved.model.max_model_len,
        vocab_size=resolved.model_spec.vocab_size,
        num_blocks=cache.num_blocks // cache.groups.num_groups,
        block_size=resolved.cache.block_size,
        max_cached_len=resolved.max_cached_len(cache.num_blocks),
        max_num_seqs=resolved.scheduler.max_num_seqs,
        max_num_batched_tokens=resolved.scheduler.max_num_batched_tokens,
        eos_token_ids=resolved.model_files.eos_token_ids,
        weights_bytes=weights_bytes,
        kv_cache_bytes=cache.num_bytes,
        dtype=resolved.model.dtype,
        device=device,
        kernels=dict(kernels),
        phases=dict(phases),
        resident_bytes=resident,
        peak_bytes=peak,
    )
