"""How many blocks of the KV cache a device has room for, and what to say when there is too little."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ....config import Layer, Resolved
from ...kernels.gpu.sample import sampling_workspace
from .slot_arena import arena_bytes

GRAPHS_BYTES = 256 << 20  # of captured graphs: their launches, and what kernels keep between two
_FIXES = (
    "lower `model.max_model_len`, `scheduler.max_num_seqs` or `scheduler.max_num_batched_tokens`, raise "
    "`cache.gpu_memory_utilization` where other programs leave the memory free, or free memory on the device"
)
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of a device with the weights on it."""

    total: int
    free: int
    allocated: int  # of this process: the weights
    step: int  # what the largest step takes besides weights and cache


def blocks_that_fit(resolved: Resolved, memory: DeviceMemory) -> int:
    """The planned number of blocks; fewer where the plan left the number open and the device has less room.

    Raises MemoryError if not one sequence of full length would fit, or not what the deployment demands.
    """
    scheduler, cache, model_len = resolved.scheduler, resolved.cache, resolved.model.max_model_len
    seqs, vocab_size = scheduler.max_num_seqs, resolved.facts.vocab_size
    tables = arena_bytes(seqs, model_len, cache.block_size, vocab_size)
    tables += sum(each.nbytes for each in sampling_workspace(seqs, vocab_size, "meta"))
    reserve = memory.step + tables
    if scheduler.cuda_graph_sizes:
        reserve += GRAPHS_BYTES + memory.step  # graphs have a pool of their own beside that of steps without one
    planned, block_bytes = resolved.num_kv_blocks, resolved.memory.kv_bytes_per_token * cache.block_size
    is_open = (
        cache.num_gpu_blocks_override is None and resolved.origin("cache.kv_cache_memory_bytes").layer is Layer.RULE
    )
    # A cache of a written size may take all there is; else the device is shared as the deployment says.
    share = int(cache.gpu_memory_utilization * memory.total) - memory.allocated if is_open else memory.free
    room = max(0, min(share, memory.free) - reserve)
    fitting = min(planned, room // block_bytes)
    needed = -(-model_len // cache.block_size) if is_open else planned
    if fitting < needed:
        what = f"one sequence of {model_len} tokens" if is_open else "what the deployment demands"
        raise MemoryError(
            f"the KV cache needs {needed * block_bytes} bytes for {what}, and the device has room for {room}: "
            f"{memory.free} are free beside the weights, of which a step takes {memory.step} and what graphs and "
            f"tables of sequences keep {reserve - memory.step}; {_FIXES}"
        )
    if fitting < planned:
        logger.warning(
            "the KV cache has %d blocks, not the %d that were planned: that is the room beside a step of %d bytes",
            fitting,
            planned,
            memory.step,
        )
    return fitting


def out_of_memory(what: str, num_bytes: int) -> MemoryError:
    return MemoryError(f"the device has no room for {what} of {num_bytes} bytes; {_FIXES}")
