"""EngineInfo of a runner that has its weights and its KV cache."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from ...config import Resolved
from ...config.cpu_kernels import of_whole_texts, torch_table
from ...config.schema.types import format_about
from ...model.quantised import scheme_of
from ..api import EngineInfo
from .loaded_model import LoadedModel
from .measure import process_memory


def engine_info(
    resolved: Resolved, loaded: LoadedModel, rows: Mapping[str, str], phases: Mapping[str, float]
) -> EngineInfo:
    """rows: of the start-up table, about how steps are computed. phases: of the start, and their seconds."""
    cache, states = loaded.cache, loaded.cache.states
    resident = peak = None
    if (held := process_memory()) is not None:
        reserved = states.num_bytes if states is not None and resolved.device.device == "cpu" else 0
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
        weights_bytes=loaded.model.num_bytes,
        kv_cache_bytes=cache.num_bytes,
        dtype=resolved.model.dtype,
        device=_device(resolved, loaded.device),
        kernels=_kernels(resolved, loaded) | loaded.model.table | cache.table | _states(resolved, loaded) | dict(rows),
        phases=dict(phases),
        resident_bytes=resident,
        peak_bytes=peak,
        pid=os.getpid(),
    )


def _device(resolved: Resolved, device: torch.device) -> str:
    if resolved.device.device == "cpu":
        return str(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "Triton's interpreter"
    return f"{device} ({name})"


def _kernels(resolved: Resolved, loaded: LoadedModel) -> dict[str, str]:
    table = loaded.kernels.table
    if loaded.compilation is not None:
        table = torch_table(str(loaded.compilation), scheme_of(resolved.model.quantization))
    spec = resolved.model_spec
    return table if spec.generates else of_whole_texts(table, is_causal=spec.is_causal)


def _states(resolved: Resolved, loaded: LoadedModel) -> dict[str, str]:
    states = loaded.cache.states
    if states is None:
        return {}
    size, kept = format_about(states.num_bytes), resolved.num_kept_states
    reused = f"{kept} more are kept for prefixes that are reused" if kept else "no prefix is reused"
    return {"recurrent_states": f"{size} for {resolved.scheduler.max_num_seqs} sequences; {reused}"}
