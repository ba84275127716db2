"""Memory budget of a device: how many KV cache blocks fit, and the error if there are too few."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ....config import Layer, Resolved
from ....config.memory.gpu_reserve import GRAPHS_BYTES, staging_bytes
from ...kernels.gpu.sample import sampling_workspace
from .slot_arena import arena_bytes

_FIXES = (
    "lower `model.max_model_len`, `scheduler.max_num_seqs` or `scheduler.max_num_batched_tokens`, raise "
    "`cache.gpu_memory_utilization` if no other program needs the memory, or free memory on the device"
)
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of a device, measured after the weights were loaded and the states allocated."""

    total: int
    free: int
    allocated: int  # of this process: weights and recurrent states
    step: int  # of the largest step, in addition to these


def blocks_that_fit(resolved: Resolved, memory: DeviceMemory) -> int:
    """The planned number of blocks; fewer if the deployment leaves the number open and the device has less memory.

    Raises MemoryError if one sequence of maximum length would not fit, or the number that the deployment sets, or, of a
    model without keys and values, whose blocks have no bytes, a step.
    """
    scheduler, cache, model_len = resolved.scheduler, resolved.cache, resolved.model.max_model_len
    seqs, vocab_size = scheduler.max_num_seqs, resolved.model_spec.vocab_size
    tables = arena_bytes(seqs, model_len, cache.block_size, vocab_size, resolved.cache_groups.num_groups)
    tables += sum(each.nbytes for each in sampling_workspace(seqs, vocab_size, "meta"))
    reserve = memory.step + tables
    if scheduler.cuda_graph_sizes:
        reserve += GRAPHS_BYTES + memory.step  # graphs have their own memory pool
    if resolved.stores_blocks:
        reserve += staging_bytes(resolved.memory.kv_block_bytes)
    planned, block_bytes = resolved.num_kv_blocks, resolved.memory.kv_block_bytes
    is_open = (
        cache.num_gpu_blocks_override is None and resolved.origin("cache.kv_cache_memory_bytes").layer is Layer.RULE
    )
    # A cache of a set size may take all free memory; otherwise gpu_memory_utilization limits it.
    share = int(cache.gpu_memory_utilization * memory.total) - memory.allocated if is_open else memory.free
    room = min(share, memory.free) - reserve
    needed = -(-model_len // cache.block_size) if is_open else planned
    if room < needed * block_bytes:
        what = f"one sequence of {model_len} tokens" if is_open else "the number of blocks that the deployment sets"
        wants = f"the KV cache needs {needed * block_bytes} bytes for {what}, and its budget is {max(0, room)}"
        held = " and states" * resolved.model_spec.has_states
        raise MemoryError(
            f"{wants if block_bytes else 'a step does not fit'}: {memory.free} bytes are free after the weights{held}, "
            f"of which a step takes {memory.step} and graphs and sequence tables take {reserve - memory.step}; {_FIXES}"
        )
    fitting = min(planned, room // block_bytes) if block_bytes else planned
    if fitting < planned:
        logger.warning(
            "the KV cache has %d blocks, not the planned %d: no more fit in addition to a step of %d bytes",
            fitting,
            planned,
            memory.step,
        )
    return fitting


def out_of_memory(what: str, num_bytes: int) -> MemoryError:
    return MemoryError(f"the device has too little memory for {what} of {num_bytes} bytes; {_FIXES}")
