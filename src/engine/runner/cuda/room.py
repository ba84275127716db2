"""How many blocks of the KV cache a device has room for, and what to say when it has not."""

from __future__ import annotations

import logging

from ....config import Resolved
from .slot_arena import arena_bytes

GRAPHS_BYTES = 256 << 20  # of captured graphs: launches, and what kernels keep between them
_FIXES = (
    "lower `model.max_model_len`, `scheduler.max_num_seqs` or `scheduler.max_num_batched_tokens`, raise "
    "`cache.gpu_memory_utilization` if other programs leave the memory free, or free memory on the device"
)
logger = logging.getLogger(__name__)


def blocks_that_fit(resolved: Resolved, step_bytes: int, free_bytes: int, total_bytes: int) -> int:
    """The planned number of blocks, or fewer where the plan leaves the number open and the device has less room.

    Args:
        step_bytes: what the largest step takes besides weights and cache.
        free_bytes, total_bytes: of the device, with the weights on it.

    Raises MemoryError if not one sequence of full length would fit, or not what the deployment demands.
    """
    scheduler, cache, model_len = resolved.scheduler, resolved.cache, resolved.model.max_model_len
    tables = arena_bytes(scheduler.max_num_seqs, model_len, cache.block_size, resolved.facts.vocab_size)
    reserve = step_bytes + tables + (GRAPHS_BYTES if scheduler.cuda_graph_sizes else 0)
    planned, block_bytes = resolved.num_kv_blocks, resolved.kv_block_bytes
    is_open = resolved.has_open_kv_cache
    # What a deployment names is kept to as long as it fits at all; else the device is shared as it says.
    left_to_others = int((1 - cache.gpu_memory_utilization) * total_bytes) if is_open else 0
    room = max(0, free_bytes - reserve - left_to_others)
    fitting = min(planned, room // block_bytes)
    needed = -(-model_len // cache.block_size) if is_open else planned
    if fitting < needed:
        raise MemoryError(
            f"the KV cache needs {needed * block_bytes} bytes ({needed} blocks), and the device has room for {room}: "
            f"{free_bytes} are free beside the weights, a step takes {step_bytes}, tables by slot {tables}; {_FIXES}"
        )
    if fitting < planned:
        logger.warning(
            "the KV cache has %d blocks, not the %d that were planned: the largest step takes %d bytes of the device",
            fitting,
            planned,
            step_bytes,
        )
    return fitting


def out_of_memory(what: str, num_bytes: int) -> MemoryError:
    return MemoryError(f"the device has no room for {what} of {num_bytes} bytes; {_FIXES}")
