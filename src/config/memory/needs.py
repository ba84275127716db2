"""What the use of a device's memory follows from: the device, the deployment's options, and its part of the model."""

from __future__ import annotations

from ...model.adapted_layers import computed_shapes, embedding_shape
from ...model.adapter_bytes import adapters_bytes
from ...model.pipeline_stages import largest_share, most_state_bytes, most_state_input_bytes
from ...model.record import Record
from ...model.sizes import DTYPE_BYTES, moving_bytes
from ...model.spec import ModelSpec
from ...model.tensor_parallel import of_one_device
from .kv_cost import KVCost


class DeviceRoom(Record):
    """Memory of a device that computes."""

    is_gpu: bool  # with its own memory; kernels that are interpreted use that of the host
    total_bytes: int
    free_bytes: int

    def budget(self, share: float) -> int:
        """Bytes to use. Of a GPU, a share of the total memory, as far as it is free; of the host, of what is free."""
        if not self.is_gpu:
            return int(share * self.free_bytes)
        return min(int(share * self.total_bytes), self.free_bytes)


class MemoryNeeds(Record):
    """What a deployment asks of a device's memory. None: it follows from the rest."""

    memory_share: float
    kv_dtype: str
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int  # without chunked prefill those of the longest prompt at least, as a rule demands
    max_model_len: int | None
    kv_cache_bytes: int | None
    num_kv_blocks: int | None = None
    retention_interval: int = 0  # `cache.prefix_cache_retention_interval`; 0 without prefix caching
    max_drafted: int = 0  # tokens of a sequence in a step, which a second state of it takes back; 0: no drafts
    has_graphs: bool = True
    has_cache_groups: bool = False  # layers with a window keep the window only
    cpu_offload_gb: float = 0.0  # of a GPU's weights
    offload_prefetch_step: int = 1
    transfer_bytes: int = 0  # host memory for blocks that other engines may read
    stores_blocks: bool = False  # outside the KV cache
    kept_bytes: int = 0  # host memory for blocks beside the KV cache
    num_adapters: int = 0  # that are kept in memory (`lora.max_cpu_loras`)
    adapter_rank: int = 0  # `lora.max_lora_rank`
    adapter_layers: tuple[str, ...] = ()  # `lora.lora_target_modules`
    adapter_saved_elements: int = 0  # most of whole weights, and rows of them, of an adapter that the deployment names

    @property
    def has_drafts(self) -> bool:
        return self.max_drafted > 0


class ModelShare(Record):
    """A model, and what a device has of it: the ranks of a stage have equal parts; of stages the one with most counts.
    One rank has the network that drafts, and counts for all.

    kv_of_layers: KV cost of a model that this build cannot run, with its states; None: what this build's engine has.
    """

    spec: ModelSpec  # the whole model
    max_context: int
    can_offload: bool  # whole layers, to host memory
    dtype: str
    held_in: str | None  # the format of linear layers, as in model/quantised.py
    state_dtype: str  # of the sums of recurrent layers
    rank_weights_bytes: int  # of all stages of one rank
    num_ranks: int
    num_stages: int
    num_context_parts: int
    kv_of_layers: KVCost | None = None
    draft_weights_bytes: int = 0  # of a network that drafts tokens
    draft_token_bytes: int = 0  # of what it keeps of a token

    @property
    def rank_spec(self) -> ModelSpec:
        return of_one_device(self.spec, self.num_ranks)

    @property
    def weights_bytes(self) -> int:
        if self.num_stages == 1:
            return self.rank_weights_bytes + self.draft_weights_bytes
        of_stage = int(self.rank_weights_bytes * largest_share(self.rank_spec, self.num_stages))
        return of_stage + self.draft_weights_bytes

    def adapter_bytes(self, needs: MemoryNeeds) -> int:
        """Maximum number of bytes of the adapters in memory: those that are kept, and one that is read or waits for its
        slot."""
        if not needs.num_adapters:
            return 0
        spec, layers, num_copies = self.rank_spec, needs.adapter_layers, needs.num_adapters + 1
        element_bytes, rank = DTYPE_BYTES[self.dtype], needs.adapter_rank
        linear = computed_shapes(spec, layers, of_experts=False)
        size = adapters_bytes(linear, num_copies, rank, element_bytes, num_vectors=2)
        experts = computed_shapes(spec, layers, of_experts=True)
        size += adapters_bytes(experts, num_copies, rank, element_bytes)
        size += adapters_bytes(embedding_shape(self.spec, layers), num_copies, rank, element_bytes)
        size += num_copies * needs.adapter_saved_elements * element_bytes
        return size if self.num_stages == 1 else int(size * largest_share(self.rank_spec, self.num_stages))

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent states of one sequence."""
        if self.kv_of_layers is not None:
            return 0
        return most_state_bytes(self.rank_spec, self.num_stages, self.dtype, self.state_dtype)

    @property
    def state_input_bytes(self) -> int:
        """Bytes that recurrent layers keep of a token until it is known whether it was accepted."""
        if self.kv_of_layers is not None:
            return 0
        return most_state_input_bytes(self.rank_spec, self.num_stages, self.dtype)

    @property
    def moving_bytes(self) -> int:
        """Bytes of experts on their way to this device."""
        return moving_bytes(self.rank_spec, self.dtype, self.held_in)
