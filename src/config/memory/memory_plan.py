"""The use of a device's memory. A start decides with it, and a plan shows it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ...model.cache_groups import groups_of_stage, model_cache_groups
from ...model.offload import WeightOffload, weight_offload
from ...model.record import Record
from ..auto_values import KVLimit, auto_kv_bytes, most_drafted_tokens, num_kept_states
from .gpu_reserve import GRAPHS_BYTES, context_bytes, staging_bytes, step_bytes
from .kv_cost import KVCost, kv_cost_of_groups
from .needs import DeviceRoom, MemoryNeeds, ModelShare

SizedBy: TypeAlias = KVLimit | Literal["blocks", "bytes", "nothing", "rest"]


class MemoryPlan(Record):
    """Bytes on the device by use."""

    budget_bytes: int  # gpu_memory_utilization x what is available on a CPU, x all there is on a GPU
    weights_bytes: int
    weight_offload: WeightOffload | None = None  # in the host's memory, not counted in `weights_bytes`
    num_states: int = 0  # recurrent states: of max_num_seqs sequences, twice with drafts, and those kept for later
    num_kept_states: int = 0  # the latter
    state_bytes: int = 0  # of all of them
    drafted_bytes: int = 0  # what the states of tokens with drafts are computed from again, if some are rejected
    transfer_bytes: int = 0  # blocks that other engines may read
    kept_bytes: int = 0  # blocks beside the KV cache (`cache.kv_offloading_size`)
    is_on_host: bool = False  # these two, and not counted: a GPU has the host beside it
    adapter_bytes: int = 0  # of the adapters that are kept and one that is read, of the highest rank
    moving_bytes: int = 0  # experts on their way to this process
    activation_bytes: int = 0  # reserved for the steps on a GPU; a CPU's budget does not include them
    kv: KVCost
    kv_sized_by: SizedBy = "nothing"  # what the KV cache's size follows from
    num_kv_blocks: int = 0  # of each group of layers
    kv_cache_bytes: int = 0
    max_cached_len: int = 0  # tokens of the longest sequence that the KV cache holds

    @property
    def kv_bytes_per_token(self) -> int:
        return self.kv.token_bytes + sum(size for _, size in self.kv.windows)

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of a block of all groups of layers; with context parallel, of the part of one process."""
        return self.kv.block_bytes

    @property
    def beside_bytes(self) -> int:
        """Bytes on the device for blocks outside the KV cache."""
        return 0 if self.is_on_host else self.transfer_bytes + self.kept_bytes

    @property
    def fixed_bytes(self) -> int:
        """All that the KV cache and the steps leave."""
        held = self.weights_bytes + self.state_bytes + self.drafted_bytes + self.adapter_bytes
        return held + self.beside_bytes + self.moving_bytes

    @property
    def total_bytes(self) -> int:
        """All but the steps."""
        return self.fixed_bytes + self.kv_cache_bytes


def memory_of(needs: MemoryNeeds, model: ModelShare, device: DeviceRoom) -> MemoryPlan:
    """The use of a device's memory by one process of a deployment."""
    kv, offload = _kv_cost(needs, model), _weight_offload(needs, model)
    num_kept = num_kept_states(model.state_bytes, needs.max_num_seqs, needs.retention_interval)
    sizes = needs.max_num_seqs, needs.max_num_batched_tokens
    number = num_kept + needs.max_num_seqs * (1 + needs.has_drafts) if model.state_bytes else 0
    plan = MemoryPlan(
        budget_bytes=device.budget(needs.memory_share),
        weights_bytes=model.weights_bytes - (0 if offload is None else offload.saved_bytes),
        weight_offload=offload,
        num_states=number,
        num_kept_states=num_kept,
        state_bytes=number * model.state_bytes,
        drafted_bytes=model.state_input_bytes * most_drafted_tokens(*sizes, needs.max_drafted, model.num_stages),
        transfer_bytes=needs.transfer_bytes,
        kept_bytes=needs.kept_bytes,
        is_on_host=device.is_gpu,
        moving_bytes=model.moving_bytes,
        adapter_bytes=model.adapter_bytes(needs),
        activation_bytes=_reserved_bytes(needs, model, kv) if device.is_gpu else 0,
        kv=kv,
    )
    return _with_kv_cache(plan, needs, model.max_context)


def _kv_cost(needs: MemoryNeeds, model: ModelShare) -> KVCost:
    if model.kv_of_layers is not None:
        return model.kv_of_layers
    spec = model.rank_spec
    groups = model_cache_groups(spec, model.max_context, needs.has_cache_groups)
    return kv_cost_of_groups(
        groups_of_stage(spec, groups, model.num_stages),
        spec.keeps,
        needs.kv_dtype,
        needs.block_size,
        step_tokens=needs.max_num_batched_tokens,
        num_parts=model.num_context_parts,
        beside=groups.num_groups * model.draft_token_bytes,  # a block of it has the number of any group's
    )


def _weight_offload(needs: MemoryNeeds, model: ModelShare) -> WeightOffload | None:
    if not model.can_offload:
        return None
    gibibytes, prefetch = needs.cpu_offload_gb, needs.offload_prefetch_step
    return weight_offload(model.rank_spec, model.dtype, model.weights_bytes, gibibytes, prefetch)


def _reserved_bytes(needs: MemoryNeeds, model: ModelShare, kv: KVCost) -> int:
    """Bytes on a GPU for all that is neither kept nor loaded."""
    sizes = needs.max_num_seqs, needs.max_num_batched_tokens
    step = step_bytes(model.spec, model.dtype, *sizes, num_devices=model.num_ranks)
    staging = staging_bytes(kv.block_bytes) if needs.stores_blocks else 0
    return step + context_bytes(model.num_ranks) + needs.has_graphs * GRAPHS_BYTES + staging


def _with_kv_cache(plan: MemoryPlan, needs: MemoryNeeds, max_context: int) -> MemoryPlan:
    """plan: without a KV cache, which gets what the deployment can fill of the rest."""
    length, unit = needs.max_model_len or max_context, plan.kv.block_bytes
    sized_by, blocks = _num_blocks(plan, needs, length)
    limit = max(max_context, length)
    held = plan.kv.longest(blocks * unit, limit) if unit else min(limit, blocks * needs.block_size)
    sizes = {"kv_sized_by": sized_by, "num_kv_blocks": blocks, "kv_cache_bytes": blocks * unit, "max_cached_len": held}
    return plan.model_copy(update=sizes)


def _num_blocks(plan: MemoryPlan, needs: MemoryNeeds, length: int) -> tuple[SizedBy, int]:
    """Written blocks, else written memory, else what sequences of `length` tokens can fill."""
    unit, room = plan.kv.block_bytes, plan.budget_bytes - plan.fixed_bytes - plan.activation_bytes
    if needs.num_kv_blocks is not None:
        return "blocks", needs.num_kv_blocks
    if not unit:
        return "nothing", (room >= 0) * needs.max_num_seqs * -(-length // needs.block_size)
    if needs.kv_cache_bytes is not None:
        return "bytes", needs.kv_cache_bytes // unit
    if plan.is_on_host:  # memory that is not used otherwise
        return "rest", max(0, room) // unit
    one, is_len_written = plan.kv.in_blocks(length), needs.max_model_len is not None
    wanted, limit = auto_kv_bytes(needs.max_num_seqs, one, room, is_len_written=is_len_written)
    return limit, max(0, wanted) // unit
