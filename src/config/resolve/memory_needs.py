"""What the options of a deployment ask of a device's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..auto_values import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, auto_block_size
from ..memory.needs import MemoryNeeds
from .decide_steps import why_no_graphs
from .decisions import Decisions


def memory_needs(
    done: Decisions, device: str, dtype: str, max_context: int, is_open: Callable[[str], bool]
) -> MemoryNeeds:
    """
    device: cpu or cuda, of which open values are the defaults.
    dtype, max_context: of the model.
    is_open: whether the value at a path is not known.
    """

    def value(path: str) -> Any:
        return None if is_open(path) else done.get(path)

    length, seqs = value("model.max_model_len"), value("scheduler.max_num_seqs") or MAX_NUM_SEQS[device]
    longest_prompt = 0 if done.computes_in_chunks else length or max_context
    tokens = value("scheduler.max_num_batched_tokens") or max(MAX_NUM_BATCHED_TOKENS[device], seqs, longest_prompt)
    return MemoryNeeds(
        memory_share=done.cache.gpu_memory_utilization,
        kv_dtype=value("cache.kv_cache_dtype") or dtype,
        block_size=value("cache.block_size") or auto_block_size(device, done.tokens_of_vector),
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=length,
        kv_cache_bytes=value("cache.kv_cache_memory_bytes"),
        num_kv_blocks=done.cache.num_gpu_blocks_override,
        retention_interval=done.retention_interval,
        max_drafted=0 if value("speculative.method") is None else done.speculative.num_speculative_tokens,
        has_graphs=not why_no_graphs(done, device),
        has_cache_groups=not done.scheduler.disable_hybrid_kv_cache_manager,
        cpu_offload_gb=0.0 if device == "cpu" else done.cache.cpu_offload_gb,
        offload_prefetch_step=done.cache.offload_prefetch_step,
        transfer_bytes=done.stored_shares[0],
        kept_bytes=done.stored_shares[1],
        stores_blocks=done.stores_blocks,
        num_adapters=done.lora.max_cpu_loras if done.lora.enable_lora else 0,
        adapter_rank=done.lora.max_lora_rank,
        adapter_layers=done.lora.lora_target_modules,
        adapter_saved_elements=0 if done.model_files is None else done.model_files.adapter_saved_elements,
    )
