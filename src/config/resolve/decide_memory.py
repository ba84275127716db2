"""What `auto` becomes in the use of memory: recurrent states, the number of sequences, and the KV cache.

Needs the model's files. What the weights, the states and a step leave of the budget is for the KV cache.
"""

from __future__ import annotations

from ...model.cache_groups import (
    CacheGroups,
    blocks_of_sequence,
    groups_of_stage,
    kv_bytes_per_token,
    longest_sequence,
    model_cache_groups,
)
from ...model.offload import WeightOffload, weight_offload
from ...model.pipeline_stages import largest_share, most_state_bytes, pipeline_problem
from ...model.quantised import held_in
from ...model.sizes import moving_bytes
from ..auto_values import (
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    QUEUED_PER_KV_TOKEN,
    STATES_SHARE,
    auto_kv_bytes,
    auto_num_seqs,
    num_states,
)
from ..schema.types import format_about
from .decide_steps import why_no_graphs
from .decisions import Decisions
from .described_model import ModelFiles
from .gpu_memory import reserved_bytes, staging_bytes
from .memory_plan import MemoryPlan


def decide_states(done: Decisions, model_files: ModelFiles) -> None:
    """Format of the sums in recurrent states."""
    if not model_files.spec.has_states or not done.is_auto("cache.mamba_ssm_cache_dtype"):
        return
    if done.is_auto("cache.mamba_cache_dtype"):
        found = "float32", "R329", "sums of many tokens lose precision in bfloat16"
    else:
        found = done.cache.mamba_cache_dtype, "R329", "as `mamba_cache_dtype`"
    done.decide("cache.mamba_ssm_cache_dtype", *found)


def _one_state(done: Decisions, model_files: ModelFiles) -> int:
    dtype, sums = done.model.dtype, done.cache.mamba_ssm_cache_dtype
    return most_state_bytes(model_files.spec, done.topology.num_stages, dtype, sums)


def decide_num_seqs(done: Decisions, model_files: ModelFiles) -> None:
    """Fewer than usual if their recurrent states would take too much memory."""
    device, one_state = done.device.device, _one_state(done, model_files)
    if not done.is_auto("scheduler.max_num_seqs") or not one_state:
        return
    number = auto_num_seqs(device, one_state, _budget(done) - _weights_bytes(done, model_files))
    if number < MAX_NUM_SEQS[device]:
        states = format_about(number * one_state)
        reason = f"their recurrent states, {states}, take at most 1/{STATES_SHARE} of what the weights leave"
        done.decide("scheduler.max_num_seqs", number, "R102", reason)


def _budget(done: Decisions) -> int:
    """Bytes to use. Of a GPU, a share of the total memory, as far as it is free."""
    share, gpu = done.cache.gpu_memory_utilization, done.gpu
    if gpu is None:
        return int(share * done.available_memory_bytes)
    return min(int(share * gpu.total_memory_bytes), gpu.available_memory_bytes)


def _held_in(done: Decisions) -> str | None:
    is_on_cpu, is_eager = done.device.device == "cpu", done.model.enforce_eager
    keeps_twelve_bits = is_on_cpu and not is_eager and done.machine.keeps_twelve_bits
    return held_in(done.model.dtype, done.model.quantization, keeps_twelve_bits)


def _moving_bytes(done: Decisions, model_files: ModelFiles) -> int:
    return moving_bytes(model_files.spec, done.model.dtype, _held_in(done))


def _weights_bytes(done: Decisions, model_files: ModelFiles) -> int:
    dtype, held, spec = done.model.dtype, _held_in(done), model_files.spec
    layout = done.codes_layout(done.device.device, cpu_keeps_codes=done.machine.keeps_codes)
    whole = model_files.weights_bytes(dtype, held, layout=layout)
    if pipeline_problem(spec, done.topology.num_stages):
        return whole
    return int(whole * largest_share(spec, done.topology.num_stages))


def _weight_offload(done: Decisions, model_files: ModelFiles, weights: int) -> WeightOffload | None:
    if done.device.device == "cpu" or model_files.implementation == "transformers":
        return None
    gibibytes, prefetch = done.cache.cpu_offload_gb, done.cache.offload_prefetch_step
    return weight_offload(model_files.spec, done.model.dtype, weights, gibibytes, prefetch)


def decide_memory(done: Decisions, model_files: ModelFiles) -> None:
    """Size of the KV cache: written blocks, else written memory, else what the deployment can fill."""
    dtype, block_size = done.model.dtype, done.cache.block_size
    is_no_cpu_format = done.cache.kv_cache_dtype == "float16" and done.device.device == "cpu"
    if done.is_auto("cache.kv_cache_dtype") or is_no_cpu_format:
        done.decide("cache.kv_cache_dtype", dtype, "R088", "the model's own format")
    weights, budget = _weights_bytes(done, model_files), _budget(done)
    offload = _weight_offload(done, model_files, weights)
    weights -= 0 if offload is None else offload.saved_bytes
    is_hybrid = not done.scheduler.disable_hybrid_kv_cache_manager
    groups = model_cache_groups(model_files.spec, model_files.max_context, is_hybrid)
    own = groups_of_stage(model_files.spec, groups, done.topology.num_stages)
    per_token = kv_bytes_per_token(model_files.spec, done.cache.kv_cache_dtype, own)
    share = done.cache.gpu_memory_utilization
    activations = 0 if done.gpu is None else _activations(done, model_files, dtype)
    seqs, one_state = done.scheduler.max_num_seqs, _one_state(done, model_files)
    places = num_states(one_state, seqs, done.retention_interval)
    states = places * one_state
    if done.gpu is not None and done.stores_blocks and not done.is_interpreted:
        activations += staging_bytes(block_size * per_token)
    transfer, kept = (0, 0) if done.gpu is not None else done.stored_shares
    moving = _moving_bytes(done, model_files)
    block_bytes = block_size * per_token // done.context_parts((done.model_files or model_files).spec)
    done.bytes_of_longest = _bytes_of_longest(done, model_files, groups, block_bytes)
    is_auto, blocks = done.is_auto("cache.kv_cache_memory_bytes"), done.cache.num_gpu_blocks_override
    if blocks is not None:
        if is_auto:
            reason = f"{blocks} blocks, as cache.num_gpu_blocks_override says"
            done.decide("cache.kv_cache_memory_bytes", blocks * block_bytes, "R085", reason)
    elif not block_bytes:
        fits = weights + states + activations + transfer + kept + moving <= budget
        blocks = fits * done.scheduler.max_num_seqs * -(-_longest(done, model_files) // block_size)
        if is_auto:
            done.decide("cache.kv_cache_memory_bytes", 0, "R221", "no layer keeps anything of each token")
    elif not is_auto:
        blocks = done.cache.kv_cache_memory_bytes // block_bytes
    else:
        room = budget - weights - states - activations - transfer - kept - moving
        blocks = _auto_blocks(done, model_files, room, block_bytes, share)
    done.num_kv_blocks = blocks
    pool, limit = blocks * groups.num_groups, max(model_files.max_context, _longest(done, model_files))
    done.max_cached_len = longest_sequence(groups.windows, pool, block_size, _step_tokens(done), limit)
    done.memory = MemoryPlan(
        budget_bytes=budget,
        weights_bytes=weights,
        weight_offload=offload,
        num_states=places,
        state_bytes=states,
        activation_bytes=activations,
        transfer_bytes=transfer,
        kept_bytes=kept,
        moving_bytes=moving,
        kv_bytes_per_token=per_token,
        kv_block_bytes=block_bytes,
        kv_cache_bytes=blocks * block_bytes,
    )
    if done.is_auto("scheduler.max_queued_tokens"):
        tokens = max(1, QUEUED_PER_KV_TOKEN * blocks * block_size)
        reason = f"{QUEUED_PER_KV_TOKEN} x the {blocks * block_size} tokens that the KV cache holds"
        done.decide("scheduler.max_queued_tokens", tokens, "R222", reason)


def _activations(done: Decisions, model_files: ModelFiles, dtype: str) -> int:
    seqs, tokens = done.scheduler.max_num_seqs, done.scheduler.max_num_batched_tokens
    if done.is_auto("scheduler.max_num_batched_tokens"):  # without chunked prefill a step holds the longest prompt
        tokens = max(MAX_NUM_BATCHED_TOKENS["cuda"], _longest(done, model_files))
    if done.is_interpreted:
        return 0
    whole, num_devices = done.model_files or model_files, done.topology.group_size
    has_graphs = not why_no_graphs(done, "cuda")
    return reserved_bytes(whole.spec, dtype, seqs, tokens, has_graphs=has_graphs, num_devices=num_devices)


def _longest(done: Decisions, model_files: ModelFiles) -> int:
    """Tokens of the longest sequence."""
    return model_files.max_context if done.is_auto("model.max_model_len") else done.model.max_model_len


def _step_tokens(done: Decisions) -> int | None:
    """Tokens of the chunks in which prompts are computed; None if they are computed whole."""
    tokens: int = done.scheduler.max_num_batched_tokens
    return tokens if done.scheduler.enable_chunked_prefill else None


def _bytes_of_longest(done: Decisions, model_files: ModelFiles, groups: CacheGroups, block_bytes: int) -> int:
    """Bytes of KV cache for the longest sequence. All groups of layers have the same number of blocks.

    block_bytes: of one block of each group.
    """
    block_size, longest = done.cache.block_size, _longest(done, model_files)
    blocks = blocks_of_sequence(groups.windows, longest, block_size, _step_tokens(done))
    return -(-blocks // groups.num_groups) * block_bytes


def _auto_blocks(done: Decisions, model_files: ModelFiles, room: int, block_bytes: int, share: float) -> int:
    if done.gpu is not None and not done.is_interpreted:  # memory that is not used otherwise
        blocks = max(0, room) // block_bytes
        is_short = done.gpu.available_memory_bytes < int(share * done.gpu.total_memory_bytes)
        others = f", as far as it is free ({format_about(done.gpu.available_memory_bytes)})," * is_short
        reason = f"what cache.gpu_memory_utilization ({share:g}){others} leaves beside weights and activations"
        done.decide("cache.kv_cache_memory_bytes", blocks * block_bytes, "R221", reason)
        return blocks
    seqs, one = done.scheduler.max_num_seqs, done.bytes_of_longest
    is_len_written = not done.is_auto("model.max_model_len")
    wanted, limit = auto_kv_bytes(seqs, one, room, is_len_written=is_len_written)
    beside = "weights and states" if model_files.spec.has_states else "the weights"
    reasons = {
        "sequences": f"{seqs} sequences of {_longest(done, model_files)} tokens each",
        "ceiling": f"the maximum for auto is {format_about(wanted)}",
        "room": f"what cache.gpu_memory_utilization ({share:g}) leaves beside {beside}",
    }
    blocks = max(0, int(wanted) // block_bytes)
    done.decide("cache.kv_cache_memory_bytes", blocks * block_bytes, "R221", reasons[limit])
    return blocks
