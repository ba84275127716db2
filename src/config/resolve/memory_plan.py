"""The record of what a device's memory is for."""

from __future__ import annotations

from ...model.offload import WeightOffload
from ...model.record import Record


class MemoryPlan(Record):
    """Bytes on the device: total, and by use."""

    budget_bytes: int  # gpu_memory_utilization x what is available on a CPU, x all there is on a GPU
    weights_bytes: int
    weight_offload: WeightOffload | None = None  # weights in host memory, which are not counted in `weights_bytes`
    num_states: int = 0  # recurrent states: of max_num_seqs sequences, and those that are kept for later requests
    state_bytes: int = 0  # of all of them
    activation_bytes: int = 0  # reserved for the steps on a GPU; a CPU's budget does not include them
    transfer_bytes: int = 0  # on a CPU: for blocks that other engines may read
    kept_bytes: int = 0  # on a CPU: for blocks beside the KV cache (`cache.kv_offloading_size`)
    moving_bytes: int = 0  # experts on their way to this process
    kv_bytes_per_token: int  # on a process that keeps it
    kv_block_bytes: int  # of a block of all groups of layers; with context parallel, of the part of one process
    kv_cache_bytes: int  # num_kv_blocks x kv_block_bytes

    @property
    def total_bytes(self) -> int:
        others = self.state_bytes + self.transfer_bytes + self.kept_bytes + self.moving_bytes
        return self.weights_bytes + others + self.kv_cache_bytes
