"""What `auto` becomes in the use of memory: recurrent states, the number of sequences, and the KV cache.

Needs the model's files. config/memory computes what fits; here it becomes values with rules and reasons.
"""

from __future__ import annotations

from ...model.quantised import held_in
from ..auto_values import MAX_AUTO_KV_BYTES, MAX_NUM_SEQS, QUEUED_PER_KV_TOKEN, STATES_SHARE, auto_num_seqs
from ..memory.memory_plan import MemoryPlan, memory_of
from ..memory.needs import DeviceRoom, MemoryNeeds, ModelShare
from ..schema.types import format_about
from .decisions import Decisions
from .described_model import ModelFiles
from .memory_needs import memory_needs


def decide_states(done: Decisions, model_files: ModelFiles) -> None:
    """Format of the sums in recurrent states."""
    if not model_files.spec.has_states or not done.is_auto("cache.mamba_ssm_cache_dtype"):
        return
    if done.is_auto("cache.mamba_cache_dtype"):
        found = "float32", "R329", "sums of many tokens lose precision in bfloat16"
    else:
        found = done.cache.mamba_cache_dtype, "R329", "as `mamba_cache_dtype`"
    done.decide("cache.mamba_ssm_cache_dtype", *found)


def decide_num_seqs(done: Decisions, model_files: ModelFiles) -> None:
    """Fewer than usual if their recurrent states would take too much memory."""
    if not done.is_auto("scheduler.max_num_seqs") or not model_files.spec.has_states:
        return
    most, share = MAX_NUM_SEQS[done.device.device], _share(done, model_files)
    room = _room(done).budget(done.cache.gpu_memory_utilization) - share.weights_bytes
    has_drafts = done.speculative.method is not None
    number = auto_num_seqs(most, share.state_bytes, room, has_drafts=has_drafts)
    if number < most:
        states = format_about(number * share.state_bytes * (1 + has_drafts))
        reason = f"their recurrent states, {states}, take at most 1/{STATES_SHARE} of what the weights leave"
        done.decide("scheduler.max_num_seqs", number, "R102", reason)


def decide_memory(done: Decisions, model_files: ModelFiles) -> None:
    """Use of the device's memory, and the size of the KV cache in it."""
    is_no_cpu_format = done.cache.kv_cache_dtype == "float16" and done.device.device == "cpu"
    if done.is_auto("cache.kv_cache_dtype") or is_no_cpu_format:
        done.decide("cache.kv_cache_dtype", done.model.dtype, "R088", "the model's own format")
    needs = memory_needs(done, done.device.device, done.model.dtype, model_files.max_context, done.is_auto)
    memory = memory_of(needs, _share(done, model_files), _room(done))
    done.memory_needs, done.memory = needs, memory
    if done.is_auto("cache.kv_cache_memory_bytes"):
        rule = "R085" if memory.kv_sized_by == "blocks" else "R221"
        reason = _why_of_this_size(done, model_files, needs, memory)
        done.decide("cache.kv_cache_memory_bytes", memory.kv_cache_bytes, rule, reason)
    if done.is_auto("scheduler.max_queued_tokens"):
        held = memory.num_kv_blocks * needs.block_size
        reason = f"{QUEUED_PER_KV_TOKEN} x the {held} tokens that the KV cache holds"
        done.decide("scheduler.max_queued_tokens", max(1, QUEUED_PER_KV_TOKEN * held), "R222", reason)


def _room(done: Decisions) -> DeviceRoom:
    gpu, free = done.gpu, done.available_memory_bytes
    if gpu is None or gpu.is_interpreted:
        return DeviceRoom(is_gpu=False, total_bytes=free, free_bytes=free)
    return DeviceRoom(is_gpu=True, total_bytes=gpu.total_memory_bytes, free_bytes=free)


def _share(done: Decisions, model_files: ModelFiles) -> ModelShare:
    device, dtype, spec, machine = done.device.device, done.model.dtype, model_files.spec, done.machine
    keeps_twelve_bits = device == "cpu" and not done.model.enforce_eager and machine.keeps_twelve_bits
    held = held_in(dtype, done.model.quantization, keeps_twelve_bits)
    layout = done.codes_layout(device, cpu_keeps_codes=machine.keeps_codes)
    num_ranks, draft = done.num_ranks(spec), model_files.draft
    seqs = MAX_NUM_SEQS[device] if done.is_auto("scheduler.max_num_seqs") else done.scheduler.max_num_seqs
    kv_dtype = dtype if done.is_auto("cache.kv_cache_dtype") else done.cache.kv_cache_dtype
    draft_bytes = 0
    if draft is not None:
        draft_bytes = draft.held_bytes(dtype, held, seqs) + draft.ends_bytes(spec, dtype, held, num_ranks)
    return ModelShare(
        spec=spec,
        max_context=model_files.max_context,
        can_offload=model_files.implementation == "native",
        dtype=dtype,
        held_in=held,
        state_dtype=done.cache.mamba_ssm_cache_dtype,
        rank_weights_bytes=model_files.rank_bytes(num_ranks, dtype, held, layout),
        num_ranks=num_ranks,
        num_stages=done.num_stages(spec),
        num_context_parts=done.context_parts(spec),
        draft_weights_bytes=draft_bytes,
        draft_token_bytes=0 if draft is None else draft.token_bytes(kv_dtype),
    )


def _why_of_this_size(done: Decisions, model_files: ModelFiles, needs: MemoryNeeds, memory: MemoryPlan) -> str:
    """Why the KV cache has the size that it has."""
    share, gpu, length = needs.memory_share, done.gpu, needs.max_model_len
    is_short = gpu is not None and gpu.available_memory_bytes < int(share * gpu.total_memory_bytes)
    others = f", as far as it is free ({format_about(done.available_memory_bytes)})," * is_short
    beside = "weights and states" if model_files.spec.has_states else "the weights"
    return {
        "blocks": f"{memory.num_kv_blocks} blocks, as cache.num_gpu_blocks_override says",
        "nothing": "no layer keeps anything of each token",
        "rest": f"what cache.gpu_memory_utilization ({share:g}){others} leaves beside weights and activations",
        "sequences": f"{needs.max_num_seqs} sequences of {length or model_files.max_context} tokens each",
        "ceiling": f"the maximum for auto is {format_about(max(MAX_AUTO_KV_BYTES, memory.kv_cache_bytes))}",
        "room": f"what cache.gpu_memory_utilization ({share:g}) leaves beside {beside}",
    }[memory.kv_sized_by]
