"""What a deployment asks of a device: the written values, and what `auto` becomes on it.

These are the values of resolve/decide.py, which has decided for this device. Where it could not, for models that this
build does not run, the few values that memory depends on are filled in here with the device's own defaults.
"""

from __future__ import annotations

from typing import Any

from ...model.quantised import held_in, scheme_of
from ...model.record import Record
from ..auto_values import BLOCK_SIZE, MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS
from ..held_codes import CodesLayout
from ..resolve.decide_steps import why_no_graphs
from ..resolve.decisions import Decisions
from ..resolve.precision import own_dtype
from .devices import THIS_MACHINE, DeviceProfile
from .model import PlannedModel


class Ask(Record):
    """What the plan is computed for. None: the plan computes the value."""

    dtype: str
    kv_dtype: str
    block_size: int
    max_num_seqs: int  # if `has_auto_num_seqs` is set, what `with_sizes` makes of it
    max_num_batched_tokens: int
    max_model_len: int | None
    memory_share: float
    kv_cache_bytes: int | None
    num_kv_blocks: int | None = None
    state_dtype: str = "float32"  # of the sums of recurrent layers
    retention_interval: int = 0  # `cache.prefix_cache_retention_interval`; 0 without prefix caching
    has_auto_num_seqs: bool = False
    has_graphs: bool = True
    has_grammars: bool = True  # structured outputs: the engine has a tokenizer
    has_cache_groups: bool = False  # layers with a window keep the window only
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    quantization: str | None = None  # one that the checkpoint does not have
    activations: str | None = None  # `model.activation_quantization`
    keeps_twelve_bits: bool = False
    codes_layout: CodesLayout | None = None  # of a quantised checkpoint
    cpu_offload_gb: float = 0.0
    offload_prefetch_step: int = 1
    transfer_bytes: int = 0  # host memory for blocks that other engines may read
    stores_blocks: bool = False  # outside the KV cache
    kept_bytes: int = 0  # host memory for blocks beside the KV cache

    @property
    def num_devices(self) -> int:
        """Number of devices of one replica of the model."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.prefill_context_parallel_size

    @property
    def held_in(self) -> str | None:
        """The argument `quantization` of PlannedModel.weights_bytes."""
        if self.quantization is not None:
            return self.quantization
        return held_in(self.dtype, None, self.keeps_twelve_bits)


def ask_of(decisions: Decisions, model: PlannedModel, device: DeviceProfile) -> Ask:
    """What a deployment asks of one device.

    decisions: for this device. Of a model that this build cannot run, and of a deployment that is written for another
    kind of device, only written values count; the others are defaults.
    """
    kind = "cuda" if device.is_gpu else "cpu"
    is_decided = device.name == THIS_MACHINE or decisions.device.device == kind

    def value(path: str) -> Any:
        found = decisions.get(path)
        return found if not decisions.is_auto(path) and (is_decided or decisions.is_written(path)) else None

    def written(path: str) -> int | None:
        found = decisions.get(path)
        return found if isinstance(found, int) and decisions.is_written(path) else None

    dtype = value("model.dtype")
    if dtype is None or (dtype == "float16" and kind == "cpu" and not decisions.is_interpreted):
        dtype, _ = own_dtype(  # CPUs do not compute in float16
            model.checkpoint_dtype,
            is_on_cpu=not device.is_gpu,
            has_bfloat16=device.has_bfloat16,
            is_quantised=model.spec.quantization is not None,
        )
    layout_device = "cuda" if decisions.is_interpreted and device.name == THIS_MACHINE else device.kind
    length, written_seqs = written("model.max_model_len"), written("scheduler.max_num_seqs")
    activations = decisions.model.activation_quantization
    seqs: int = value("scheduler.max_num_seqs") or MAX_NUM_SEQS[kind]
    tokens: int = value("scheduler.max_num_batched_tokens") or max(MAX_NUM_BATCHED_TOKENS[kind], seqs)
    if not decisions.scheduler.enable_chunked_prefill:
        tokens = max(tokens, length or model.limit)
    return Ask(
        dtype=dtype,
        kv_dtype=value("cache.kv_cache_dtype") or dtype,
        block_size=value("cache.block_size") or BLOCK_SIZE[kind],
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=length,
        has_auto_num_seqs=written_seqs is None,
        memory_share=decisions.cache.gpu_memory_utilization,
        kv_cache_bytes=written("cache.kv_cache_memory_bytes"),
        state_dtype=value("cache.mamba_ssm_cache_dtype") or value("cache.mamba_cache_dtype") or "float32",
        retention_interval=decisions.retention_interval,
        num_kv_blocks=decisions.cache.num_gpu_blocks_override,
        quantization=scheme_of(decisions.model.quantization),
        activations=None if activations == "none" else activations,
        keeps_twelve_bits=device.keeps_twelve_bits and not decisions.model.enforce_eager,
        codes_layout=decisions.codes_layout(layout_device, cpu_keeps_codes=device.keeps_codes),
        cpu_offload_gb=decisions.cache.cpu_offload_gb,
        offload_prefetch_step=decisions.cache.offload_prefetch_step,
        transfer_bytes=decisions.stored_shares[0],
        stores_blocks=decisions.stores_blocks,
        kept_bytes=decisions.stored_shares[1],
        has_graphs=not why_no_graphs(decisions, kind),
        has_grammars=not decisions.model.skip_tokenizer_init,
        has_cache_groups=not decisions.scheduler.disable_hybrid_kv_cache_manager,
    )
