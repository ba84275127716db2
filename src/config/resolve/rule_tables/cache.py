"""Rules about the KV cache. The format of a rule: ../rule.py."""

from __future__ import annotations

from ...exit_codes import EXIT_ENVIRONMENT
from ...gpu_capability import FP8_CAPABILITY, capability_text
from ..rule import Rule
from ..values import Values

_STATE_DTYPES = ("cache.mamba_cache_dtype", "cache.mamba_ssm_cache_dtype")
_BLOCK_STORES = ("cache.kv_directory", "cache.kv_offloading_size", "kv_transfer.kv_connector")
_WIDER = "write `kv_cache_dtype: auto`, or bfloat16, which halves the cache of a float32 model"


def _lacks_fp8(v: Values) -> bool:
    gpu = v.decisions.gpu
    return gpu is not None and not gpu.is_interpreted and gpu.compute_capability < FP8_CAPABILITY


def _has_keys(v: Values) -> bool:
    """Whether a layer of the model keeps anything of each token; True if its files are not known."""
    return v.files is None or v.files.spec.keeps.width > 0


def _has_uniform_heads(v: Values) -> bool:
    """Whether all layers with keys and values have the same heads, and keep nothing else of each token; True if the
    model's files are not known."""
    model_files = v.files
    if model_files is None:
        return True
    kept = [keeps for keeps in model_files.spec.kept_by_layer if keeps is not None]
    is_uniform = len({keeps.tensors for keeps in kept}) <= 1 and not model_files.spec.is_sparse
    return is_uniform and all(keeps.kind != "latent" for keeps in kept)


def _has_kv_scales(v: Values) -> bool:
    """Whether some layers can have scales of an fp8 cache; True if the model's files are not known."""
    files = v.files
    if files is None:
        return True
    kept = [keeps for keeps in files.spec.kept_by_layer if keeps is not None]
    return files.implementation == "native" and any(keeps.kind != "latent" for keeps in kept)


def _shares_keys(v: Values) -> bool:
    """Whether layers read the keys and values of others; False if the model's files are not known."""
    return v.files is not None and any(source is not None for source in v.files.spec.keys_of)


RULES: tuple[Rule, ...] = (
    Rule(
        id="R084",
        title="kv_cache_memory_bytes overrides gpu_memory_utilization",
        fields=("cache.gpu_memory_utilization", "cache.kv_cache_memory_bytes"),
        severity="warning",
        is_broken=lambda v: (
            v.is_written("cache.kv_cache_memory_bytes")
            and v.is_written("cache.gpu_memory_utilization")
            and v.cache.num_gpu_blocks_override is None
        ),
        message="`cache.gpu_memory_utilization` has no effect together with `cache.kv_cache_memory_bytes`",
        why="A written size is reserved exactly; the share is only used to compute a size.",
        fixes=("remove one of the two",),
    ),
    Rule(
        id="R085",
        title="num_gpu_blocks_override overrides sizes",
        fields=("cache.num_gpu_blocks_override", "cache.kv_cache_memory_bytes", "cache.gpu_memory_utilization"),
        severity="warning",
        is_broken=lambda v: (
            v.cache.num_gpu_blocks_override is not None
            and (v.is_written("cache.kv_cache_memory_bytes") or v.is_written("cache.gpu_memory_utilization"))
        ),
        message="with `cache.num_gpu_blocks_override` no other option for the size of the KV cache has an effect",
        why="The override is for tests of preemption and replaces the number of blocks computed from the memory.",
        fixes=("remove `cache.num_gpu_blocks_override`",),
    ),
    Rule(
        id="R094",
        title="the hash algorithm needs prefix caching",
        fields=("cache.prefix_caching_hash_algo", "cache.enable_prefix_caching"),
        severity="warning",
        is_broken=lambda v: v.is_written("cache.prefix_caching_hash_algo") and not v.cache.enable_prefix_caching,
        message="`cache.prefix_caching_hash_algo` has no effect without `cache.enable_prefix_caching`",
        why="Blocks are hashed to find shared prefixes, which happens with prefix caching only.",
        fixes=("set `cache.enable_prefix_caching: true`, or remove `prefix_caching_hash_algo`",),
    ),
    Rule(
        id="R380",
        title="blocks outside the KV cache are found by prefix caching",
        fields=(*_BLOCK_STORES, "cache.enable_prefix_caching"),
        is_broken=lambda v: bool(v.block_stores) and not v.cache.enable_prefix_caching,
        message="KV blocks outside the KV cache ({block_stores}) need `cache.enable_prefix_caching`",
        why="They are stored, and found by other engines, by the hashes that prefix caching computes.",
        fixes=("set `cache.enable_prefix_caching: true`, or remove {block_stores}",),
    ),
    Rule(
        id="R381",
        title="the limit of stored blocks needs their folder",
        fields=("cache.kv_directory_size", "cache.kv_directory"),
        severity="warning",
        is_broken=lambda v: v.is_written("cache.kv_directory_size") and v.cache.kv_directory is None,
        message="`cache.kv_directory_size` has no effect without `cache.kv_directory`",
        why="Without a folder no block is stored.",
        fixes=("set `cache.kv_directory`, or remove `kv_directory_size`",),
    ),
    Rule(
        id="R382",
        title="blocks of keys and values are all that is stored outside the engine",
        fields=_BLOCK_STORES,
        needs_model=True,
        is_broken=lambda v: bool(v.block_stores) and (v.has_states or not _has_keys(v)),
        message="this model keeps no keys and values, or recurrent states too, which are not kept outside the KV cache "
        "({block_stores})",
        why="Only blocks of keys and values are stored, and a sequence of a model with recurrent states continues from "
        "a prefix only with these states.",
        fixes=("remove {block_stores}",),
    ),
    Rule(
        id="R457",
        title="the host has room for the blocks of a GPU",
        fields=(
            *("cache.kv_offloading_size", "kv_transfer.kv_connector_extra_config", "kv_transfer.kv_buffer_size"),
            "cache.cpu_offload_gb",
        ),
        needs_model=True,
        about_machine=True,
        is_broken=lambda v: (
            v.device.device == "cuda" and v.kv_host_bytes > max(0, v.machine.available_memory_bytes - v.offloaded_bytes)
        ),
        message="{kv_host} of host memory are for KV blocks, and {free_for_kv} are free",
        why="The memory is pinned: it cannot be swapped. Weights that `cache.cpu_offload_gb` keeps there are not free.",
        fixes=("write a smaller size",),
    ),
    Rule(
        id="R458",
        title="the memory for blocks holds one",
        fields=("cache.kv_offloading_size", "kv_transfer.kv_connector_extra_config"),
        needs_model=True,
        about_machine=True,  # on which the size of a block depends
        is_broken=lambda v: 0 < v.decisions.offload_bytes < v.stored_block_bytes,
        message="`cache.kv_offloading_size` {kv_offloading_size} GiB hold no KV block: one has {one_stored_block}",
        why="A block has the keys and values of `block_size` tokens in all layers, and is kept as a whole.",
        fixes=("write a larger size, or remove it",),
    ),
    Rule(
        id="R321",
        title="recurrent states are kept for prefix caching",
        fields=("cache.prefix_cache_retention_interval", "cache.enable_prefix_caching"),
        severity="warning",
        needs_model=True,
        is_broken=lambda v: (
            v.is_written("cache.prefix_cache_retention_interval")
            and bool(v.cache.prefix_cache_retention_interval)
            and not (v.has_states and v.cache.enable_prefix_caching)
        ),
        message="`cache.prefix_cache_retention_interval` has no effect {no_states}",
        why="Only recurrent layers keep a state, and only prefix caching uses one again.",
        fixes=("remove `prefix_cache_retention_interval`",),
    ),
    Rule(
        id="R322",
        title="prefix caching needs kept states",
        fields=("cache.enable_prefix_caching", "cache.prefix_cache_retention_interval"),
        severity="warning",
        needs_model=True,
        is_broken=lambda v: (
            v.decisions.is_written("cache.enable_prefix_caching")
            and v.cache.enable_prefix_caching
            and v.has_states
            and not v.cache.prefix_cache_retention_interval
        ),
        message="`cache.enable_prefix_caching` has no effect with `cache.prefix_cache_retention_interval: 0`",
        why="Some layers of this model keep a recurrent state: a sequence continues from a prefix only with a state.",
        fixes=("remove `enable_prefix_caching`", "or set `prefix_cache_retention_interval` to 64"),
    ),
    Rule(
        id="R327",
        title="only recurrent layers have sums",
        fields=_STATE_DTYPES,
        severity="warning",
        needs_model=True,
        is_broken=lambda v: not v.has_states and any(map(v.is_written, _STATE_DTYPES)),
        message="`cache.mamba_cache_dtype` has no effect for this model: no layer keeps a state",
        why="Keys and values have the format `cache.kv_cache_dtype`.",
        fixes=("remove `mamba_cache_dtype` and `mamba_ssm_cache_dtype`",),
    ),
    Rule(
        id="R328",
        title="batch invariance needs exact states",
        fields=("cache.mamba_ssm_cache_dtype", "model.batch_invariant"),
        needs_model=True,
        is_broken=lambda v: v.has_states and v.model.batch_invariant and v.cache.mamba_ssm_cache_dtype == "bfloat16",
        message="`model.batch_invariant` does not hold with recurrent states in bfloat16",
        why="A state is rounded at the end of each step, and how a prompt is divided depends on other requests.",
        fixes=("write `mamba_ssm_cache_dtype: float32`", "or remove `batch_invariant`"),
    ),
    Rule(
        id="R098",
        title="fast prefill needs layers that share keys and values",
        fields=("cache.kv_sharing_fast_prefill",),
        severity="warning",
        needs_model=True,
        is_broken=lambda v: v.is_written("cache.kv_sharing_fast_prefill") and not _shares_keys(v),
        message="`cache.kv_sharing_fast_prefill` has no effect: no layer of this model reads the keys of another",
        why="Each layer of other models keeps keys and values of all tokens, and so must compute all of them.",
        fixes=("remove `kv_sharing_fast_prefill`",),
    ),
    Rule(
        id="R326",
        title="a model without attention has no KV cache",
        fields=("model.model", "cache.kv_cache_memory_bytes"),
        severity="warning",
        needs_model=True,
        is_broken=lambda v: v.decisions.is_written("cache.kv_cache_memory_bytes") and not _has_keys(v),
        message="`cache.kv_cache_memory_bytes` has no effect: no layer of this model keeps keys and values",
        why="Its layers keep states of a fixed size, for `scheduler.max_num_seqs` sequences.",
        fixes=("remove `kv_cache_memory_bytes`",),
    ),
    Rule(
        id="R514",
        title="a block has whole groups of tokens",
        fields=("cache.block_size", "model.model"),
        needs_model=True,
        is_broken=lambda v: v.cache.block_size % v.decisions.tokens_of_vector != 0,
        message="`cache.block_size` is {block_size}, and {tokens_of_vector} tokens of this model have one vector",
        why="Requests share blocks of a common prefix, and a vector of tokens in two blocks would be of both.",
        fixes=("set `cache.block_size: auto`, which is a multiple",),
    ),
    Rule(
        id="R237",
        title="a written KV cache holds at least one block",
        fields=("cache.kv_cache_memory_bytes", "cache.block_size"),
        needs_model=True,
        is_broken=lambda v: v.is_kv_written and v.memory.num_kv_blocks == 0,
        message=(
            "`cache.kv_cache_memory_bytes` is {written_kv_cache}; one block of {block_size} tokens needs {one_block}"
        ),
        why="Keys and values are kept in whole blocks, so no request could be served.",
        fixes=("set `cache.kv_cache_memory_bytes` to at least {one_block}, or to auto",),
    ),
    Rule(
        id="R203",
        title="weights and KV cache fit into memory",
        fields=("cache.kv_cache_memory_bytes", "cache.num_gpu_blocks_override"),
        needs_model=True,
        about_machine=True,
        exit_code=EXIT_ENVIRONMENT,
        is_broken=lambda v: v.is_kv_written and v.memory.total_bytes > v.decisions.available_memory_bytes,
        message=(
            "weights ({weights}{others}) and KV cache ({kv_cache}) need {total}; {where} has {available} available"
        ),
        why="The engine would be killed during the start, or other programs would run out of memory.",
        fixes=(
            "leave `cache.kv_cache_memory_bytes` to auto, or set it to at most {kv_room}",
            "{smaller_weights}",
            "{fewer_states}",
        ),
    ),
    Rule(
        id="R234",
        title="keys and values in fp8 are for GPUs",
        fields=("cache.kv_cache_dtype", "device.device"),
        about_machine=True,  # on which `device: auto` depends
        is_broken=lambda v: v.device.device == "cpu" and v.cache.kv_cache_dtype == "fp8",
        message="`cache.kv_cache_dtype` fp8 is for GPUs, and `device.device` is {device}",
        why="The attention kernels for CPUs read float32, bfloat16 and int8, which is as small and more exact.",
        fixes=("write `kv_cache_dtype: int8`", "or write `device: cuda` where there is a GPU"),
    ),
    Rule(
        id="R235",
        title="the GPU supports 8-bit values",
        fields=("cache.kv_cache_dtype", "device.device"),
        about_machine=True,
        is_broken=lambda v: v.cache.kv_cache_dtype == "fp8" and _lacks_fp8(v),
        message=(
            f"`cache.kv_cache_dtype` fp8 needs compute capability {capability_text(FP8_CAPABILITY)} (Ada, Hopper) or "
            "more; "
            "the {gpu} has {capability}"
        ),
        why="Older GPUs have no instruction that converts such values, and the kernels do not compile for them.",
        fixes=(_WIDER,),
    ),
    Rule(
        id="R090",
        title="computed scales belong to an fp8 cache",
        fields=("cache.calculate_kv_scales", "cache.kv_cache_dtype"),
        severity="warning",
        is_broken=lambda v: v.cache.calculate_kv_scales and v.cache.kv_cache_dtype != "fp8",
        message="`cache.calculate_kv_scales` has no effect with `cache.kv_cache_dtype` {kv_cache_dtype}",
        why=(
            "An int8 cache has a scale for each head of each token, computed when it is stored; wider formats need "
            "none."
        ),
        fixes=("remove `calculate_kv_scales`", "or write `kv_cache_dtype: fp8`, on a GPU"),
    ),
    Rule(
        id="R355",
        title="scales are for layers with keys and values",
        fields=("cache.calculate_kv_scales", "model.model"),
        needs_model=True,
        severity="warning",
        is_broken=lambda v: v.cache.calculate_kv_scales and v.cache.kv_cache_dtype == "fp8" and not _has_kv_scales(v),
        message="`cache.calculate_kv_scales` has no effect: the model keeps latents, or runs through transformers",
        why="Latents are stored without scales, and so are the keys and values of modules of transformers.",
        fixes=("remove `calculate_kv_scales`",),
    ),
    Rule(
        id="R097",
        title="weights are kept outside of a GPU",
        fields=("cache.cpu_offload_gb", "device.device"),
        about_machine=True,
        is_broken=lambda v: v.device.device == "cpu" and v.cache.cpu_offload_gb > 0,
        message="`cache.cpu_offload_gb` is for GPUs, and `device.device` is {device}",
        why="On a CPU all weights are in host memory.",
        fixes=("remove `cache.cpu_offload_gb`", "or write `device: cuda` where there is a GPU"),
    ),
    Rule(
        id="R356",
        title="whole layers are kept in host memory",
        fields=("cache.cpu_offload_gb", "cache.offload_prefetch_step", "model.model"),
        needs_model=True,
        about_machine=True,
        is_broken=lambda v: v.device.device == "cuda" and v.cache.cpu_offload_gb > 0 and v.weight_offload is None,
        message="`cache.cpu_offload_gb` {cpu_offload_gb} saves no memory of the GPU with this model",
        why=(
            "Layers in host memory share the space of `offload_prefetch_step` + 1 of them on the GPU, so there must be "
            "more. Models that run through transformers, whose layers share weights, or of which some have tables of "
            "n-grams, stay on the GPU as a whole."
        ),
        fixes=("write more GiB", "or remove `cache.cpu_offload_gb`"),
    ),
    Rule(
        id="R357",
        title="the host has room for weights",
        fields=("cache.cpu_offload_gb",),
        needs_model=True,
        about_machine=True,
        is_broken=lambda v: (
            v.weight_offload is not None and v.weight_offload.host_bytes > v.machine.available_memory_bytes
        ),
        message="`cache.cpu_offload_gb` keeps {offloaded} of weights in host memory, of which {free_host} are free",
        why="Their memory is pinned: it cannot be swapped.",
        fixes=("write fewer GiB",),
    ),
    Rule(
        id="R352",
        title="keys and values in int8 are for CPUs",
        fields=("cache.kv_cache_dtype", "device.device"),
        about_machine=True,  # on which `device: auto` depends
        is_broken=lambda v: v.device.device == "cuda" and v.cache.kv_cache_dtype == "int8",
        message="`cache.kv_cache_dtype` int8 is for CPUs, and `device.device` is {device}",
        why="The attention kernels for GPUs read no scale of each token.",
        fixes=("write `kv_cache_dtype: fp8` on Ada, Hopper and later, or auto",),
    ),
    Rule(
        id="R353",
        title="keys and values in int8 need equal heads",
        fields=("cache.kv_cache_dtype", "model.model"),
        needs_model=True,
        is_broken=lambda v: v.cache.kv_cache_dtype == "int8" and not _has_uniform_heads(v),
        message=(
            "int8 in `cache.kv_cache_dtype` does not fit this model: it keeps latents, keys of an index, or heads of "
            "several sizes"
        ),
        why=(
            "A latent is read as keys and as values, by kernels without scales, and so are the keys of an index. "
            "Layers with heads of several sizes share blocks, which divide evenly only without scales."
        ),
        fixes=("write `kv_cache_dtype: auto`",),
    ),
)
