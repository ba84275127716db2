"""What a deployment asks of a device: the written values, and what `auto` becomes on it.

On this machine, for a model that this build runs, these are the values of resolve/decide.py. For other devices and
models the few values that memory depends on are filled in here, by the same rules with the device's own defaults.
"""

from __future__ import annotations

from ...model.quantised import held_in, scheme_of
from ...model.record import Record
from ...model.sizes import state_bytes
from ..auto_values import BLOCK_SIZE, MAX_NUM_BATCHED_TOKENS, auto_num_seqs
from ..held_codes import CodesLayout, codes_layout
from ..resolve.decide import Decisions, no_graphs
from .devices import THIS_MACHINE, DeviceProfile
from .model import PlannedModel


class Ask(Record):
    """What the plan is computed for. None: the plan computes the value."""

    dtype: str
    kv_dtype: str
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int | None
    memory_share: float
    kv_cache_bytes: int | None
    num_kv_blocks: int | None = None
    state_dtype: str = "float32"  # of the sums of recurrent layers
    retention_interval: int = 0  # `cache.prefix_cache_retention_interval`; 0 without prefix caching
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
        """Of one replica of the model."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.prefill_context_parallel_size

    @property
    def held_in(self) -> str | None:
        """The argument `quantization` of PlannedModel.weights_bytes."""
        return held_in(self.dtype, self.quantization, self.keeps_twelve_bits)


def ask_of(decisions: Decisions, model: PlannedModel, device: DeviceProfile) -> Ask:
    def written(path: str) -> object:
        return decisions.get(path) if decisions.is_written(path) and decisions.get(path) != "auto" else None

    def number(path: str) -> int | None:
        value = written(path)
        return value if isinstance(value, int) and value >= 0 else None

    if device.name == THIS_MACHINE and model.files is not None:
        dtype = decisions.get("model.dtype")
    else:
        dtype = written("model.dtype") or auto_dtype(model, device)
    kv_dtype = written("cache.kv_cache_dtype")
    length = number("model.max_model_len")
    state_dtype = str(written("cache.mamba_ssm_cache_dtype") or written("cache.mamba_cache_dtype") or "float32")
    kind = "cuda" if device.is_gpu else "cpu"
    activations = decisions.get("model.activation_quantization")
    quantization, share = scheme_of(decisions.get("model.quantization")), decisions.get("cache.gpu_memory_utilization")
    keeps_twelve_bits = device.keeps_twelve_bits and not decisions.get("model.enforce_eager")
    is_interpreted = device.name == THIS_MACHINE and decisions.is_interpreted
    layout = codes_layout(
        "cuda" if is_interpreted or device.kind == "cuda" else device.kind,
        cpu_keeps_codes=device.keeps_codes,
        is_eager=decisions.get("model.enforce_eager"),
        is_batch_invariant=decisions.get("model.batch_invariant"),
    )
    seqs = number("scheduler.max_num_seqs")
    if seqs is None:
        held = held_in(dtype, quantization, keeps_twelve_bits)
        room = int(share * device.memory) - model.weights_bytes(dtype, held, layout=layout)
        seqs = auto_num_seqs(kind, state_bytes(model.spec, dtype, state_dtype), room)
    tokens = number("scheduler.max_num_batched_tokens") or max(MAX_NUM_BATCHED_TOKENS[kind], seqs)
    interval: int = decisions.get("cache.prefix_cache_retention_interval")
    if not decisions.get("scheduler.enable_chunked_prefill"):
        tokens = max(tokens, length or model.limit)
    return Ask(
        dtype=dtype,
        kv_dtype=kv_dtype if isinstance(kv_dtype, str) else dtype,
        block_size=number("cache.block_size") or BLOCK_SIZE[kind],
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=length,
        memory_share=share,
        kv_cache_bytes=number("cache.kv_cache_memory_bytes"),
        state_dtype=state_dtype,
        retention_interval=interval if decisions.get("cache.enable_prefix_caching") else 0,
        num_kv_blocks=decisions.get("cache.num_gpu_blocks_override"),
        quantization=quantization,
        activations=None if activations == "none" else activations,
        keeps_twelve_bits=keeps_twelve_bits,
        codes_layout=layout,
        cpu_offload_gb=decisions.get("cache.cpu_offload_gb"),
        offload_prefetch_step=decisions.get("cache.offload_prefetch_step"),
        transfer_bytes=decisions.stored_shares[0],
        stores_blocks=decisions.stores_blocks,
        kept_bytes=decisions.stored_shares[1],
        has_graphs=not no_graphs(decisions, kind),
        has_grammars=not decisions.get("model.skip_tokenizer_init"),
        has_cache_groups=not decisions.get("scheduler.disable_hybrid_kv_cache_manager"),
    )


def auto_dtype(model: PlannedModel, device: DeviceProfile) -> str:
    """The checkpoint's dtype; float16 becomes float32 on a CPU, bfloat16 becomes float16 on a GPU without it."""
    stored = model.checkpoint_dtype
    if device.is_gpu:
        return "float16" if stored == "bfloat16" and not device.has_bfloat16 else stored
    return "float32" if stored == "float16" else stored
