"""Section `cache`: the KV cache, its size, its blocks, and reuse of shared prefixes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from ..auto_values import (
    BLOCK_SIZE,
    KEPT_STATES_PER_SEQUENCE,
    MAX_AUTO_KV_BYTES,
    MAX_KEPT_STATE_BYTES,
    by_device,
    gibibytes,
)
from ..gpu_capability import FP8_CAPABILITY, capability_text
from .refused import with_refused
from .section import Section, about
from .types import Auto, Count, Flag, Gibibytes, Share, Size, Text, Whole, means, number_or_text

_SUMS_OVERFLOW = "sums exceed the range of float16; write bfloat16"
_LMCACHE = (
    "LMCache keeps blocks in a server of its own: write `kv_transfer.kv_connector: LMCacheMPConnector`, and native to "
    "keep some in this engine too"
)
_OTHER_8_BIT = "this build's 8-bit formats are int8 on CPUs and fp8 (e4m3) on GPUs; write one of them, or auto"


@with_refused("cache")
class CacheConfig(Section):
    """Memory for keys and values of running and cached sequences."""

    block_size: Annotated[Literal["auto", 8, 16, 32, 64, 128], BeforeValidator(number_or_text)] = Field(
        "auto",
        description=(
            "Number of tokens in one KV cache block. Larger blocks make block tables shorter and prefix reuse coarser: "
            f"only full blocks are shared. `auto` is {by_device(BLOCK_SIZE)}."
        ),
        examples=[16],
        json_schema_extra=about(
            unit="tokens",
            refused={"1": "8 is the minimum: with one token per block the tables would cost more than sharing saves"},
        ),
    )
    gpu_memory_utilization: Share = Field(
        0.9,
        description=(
            "Share of the memory that the engine may use. On a GPU it is a share of the total memory, for weights, KV "
            "cache and the activations of a step. On a CPU it is a share of the RAM that is free at start, for weights "
            "and KV cache. More holds more sequences; too much leaves no memory for other programs."
        ),
        examples=[0.8],
        json_schema_extra=about(unit="share of memory", aliases=("--device-memory-utilization",)),
    )
    kv_cache_memory_bytes: Size | Auto = Field(
        "auto",
        description=(
            "Memory for the KV cache. A size is reserved exactly, and the start fails if it is not available. `auto` "
            "on a CPU is what max_num_seqs sequences of max_model_len need, at most "
            f"{gibibytes(MAX_AUTO_KV_BYTES)} and at most what gpu_memory_utilization leaves after the weights. `auto` "
            "on a GPU is everything that gpu_memory_utilization leaves after weights and activations."
        ),
        examples=["4GiB"],
        json_schema_extra=about(unit="bytes"),
    )
    num_gpu_blocks_override: Count | None = Field(
        None,
        description=(
            "Number of KV cache blocks of each group of layers, whatever the memory allows. Intended for tests of "
            "preemption. Unset, the number is computed from the memory."
        ),
        examples=[128],
        json_schema_extra=about(unit="blocks"),
    )
    enable_prefix_caching: Flag = Field(
        True,
        description=(
            "Keep the KV blocks of finished requests and reuse them for prompts that start with the same tokens. "
            "Saves prefill time at no memory cost, since cached blocks are evicted when space is needed. The time to "
            "the first token then reveals whether a prefix was seen before."
        ),
    )
    prefix_caching_hash_algo: Literal["sha256", "sha256_cbor", "blake2b"] = Field(
        "sha256",
        description=(
            "Hash function for KV cache blocks, by which shared prefixes are found. `sha256` is fast. `sha256_cbor` "
            "gives hashes that any program with a CBOR library can compute too, at about two microseconds more per "
            "block. `blake2b` is about as fast as `sha256` and stores 16 bytes per block instead of 32."
        ),
        examples=["sha256_cbor"],
        json_schema_extra=about(
            refused={
                "builtin": "clients could create two prompts with the same hash; write sha256",
                "xxhash": "clients could create two prompts with the same hash and read each other's cache; "
                "write sha256",
                "xxhash_cbor": "clients could create two prompts with the same hash; write sha256_cbor",
            },
        ),
    )
    kv_directory: Text | None = Field(
        None,
        description=(
            "Folder in which the KV blocks of prompts are stored, so that a prefix that was computed before a restart, "
            "or evicted from memory, is read instead of computed. Each model, number format and block size has its "
            "own sub-folder. A file that is damaged is removed, and its tokens are computed. The files reveal "
            "prompts to those who can read them. Unset, nothing is stored."
        ),
        examples=["/var/cache/stoker/kv"],
        json_schema_extra=about(kind="path"),
    )
    kv_directory_size: Size = Field(
        10 * 2**30,
        description=(
            "Limit of all files in `kv_directory` together. Those that were not used for the longest time are removed. "
            "Engines that use one folder at the same time each count only what they have found and written."
        ),
        examples=["100GiB"],
        json_schema_extra=about(unit="bytes"),
    )
    kv_offloading_size: Gibibytes | None = Field(
        None,
        description=(
            "GiB of host memory for KV blocks of prompts, beside the KV cache. Each block is copied there once it is "
            "computed; a prefix that the KV cache has evicted since, also that of a preempted sequence, is copied back "
            "instead of computed. Blocks that were not used for the longest time make room for new ones. On a GPU the "
            "memory is pinned and allocated at the start, and the copies run beside the steps. On a CPU it is part of "
            "the budget. Each replica has as much. Not for models on several GPUs, in stages or of a launcher, nor for "
            "recurrent layers. Unset, nothing is kept."
        ),
        examples=[16],
        json_schema_extra=about(unit="GiB"),
    )
    kv_offloading_backend: Literal["native"] = Field(
        "native",
        description="What keeps the blocks of `kv_offloading_size`: this engine itself, in its own memory.",
        examples=["native"],
        json_schema_extra=about(refused={"lmcache": _LMCACHE}),
    )
    prefix_cache_retention_interval: Whole = Field(
        64,
        description=(
            "For models with recurrent layers: tokens after which the state of a sequence is copied for later "
            "requests, which can continue only from such a place. States are also kept where a prompt ends, and where "
            "it leaves a prefix that it shares, if that is as many tokens after the last one. Smaller finds longer "
            "prefixes; a copy costs as much as the states' part of one step. "
            f"Beside those of running sequences there are {KEPT_STATES_PER_SEQUENCE} x max_num_seqs states, at most "
            f"{gibibytes(MAX_KEPT_STATE_BYTES)} of them. 0 keeps none, and no prefix is reused."
        ),
        examples=[256],
        json_schema_extra=about(unit="tokens"),
    )
    mamba_cache_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description=(
            "Number format of recurrent states: the sums of gated delta networks and of Mamba layers. `auto` is "
            "float32. `bfloat16` halves their memory and what a decode step reads and writes of them; a state is "
            "then rounded at the end of each step, and small changes of large sums are lost. The last inputs of "
            "convolutions keep the model's format, which loses nothing."
        ),
        examples=["bfloat16"],
        json_schema_extra=about(refused={"float16": _SUMS_OVERFLOW}),
    )
    mamba_ssm_cache_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="The same, stronger than `mamba_cache_dtype`. `auto` is what that says.",
        examples=["float32"],
        json_schema_extra=about(refused={"float16": _SUMS_OVERFLOW}),
    )
    kv_sharing_fast_prefill: Flag = Field(
        True,
        description=(
            "For models whose last layers read the keys and values of earlier ones (Gemma 4 E2B and E4B): these layers "
            "compute only the tokens of a prompt whose logits are needed, which is usually its last. The results are "
            "the same, because such layers keep nothing of the others. Log-probabilities of prompt tokens need all "
            "tokens in all layers. False computes all of them for every prompt, to compare."
        ),
    )
    cpu_offload_gb: Gibibytes = Field(
        0.0,
        description=(
            "GiB of weights that a GPU does not hold: of the fewest layers that have as many, or of all. They lie in "
            "pinned host memory, and every step copies them over the bus, each while the layers before it compute. So "
            "a model can be larger than the GPU's memory; a step takes at least as long as these copies, which "
            "`engine plan` shows. Weights stay in their own codes. Embeddings and the output layer stay on the GPU."
        ),
        examples=[4],
        json_schema_extra=about(reload="process", unit="GiB"),
    )
    offload_prefetch_step: Count = Field(
        1,
        description=(
            "With `cpu_offload_gb`: how many layers ahead weights are copied from host memory. Each takes the place of "
            "one more layer on the GPU."
        ),
        examples=[2],
        json_schema_extra=about(reload="process", unit="layers"),
    )
    calculate_kv_scales: Flag = Field(
        False,
        description=(
            "With `kv_cache_dtype: fp8`, compute a scale for the keys and one for the values of each layer when the "
            "model is loaded, instead of the checkpoint's: twice the largest value that a prompt of up to 512 random "
            "tokens has becomes 448, the largest number of the format. It helps models whose keys or values are "
            "beyond 448, or mostly below 0.002. Layers that keep latents have no scales."
        ),
    )
    kv_cache_dtype: Annotated[
        Literal["auto", "bfloat16", "float32", "float16", "fp8", "fp8_e4m3", "int8"], means(fp8_e4m3="fp8")
    ] = Field(
        "auto",
        description=(
            "Number format of keys and values. `auto` is the model's format. `bfloat16` with float32 weights stores "
            "twice as many tokens in the same memory with fewer digits; on a CPU, bfloat16 or float32 for a model in "
            "the other makes attention slower, because plain PyTorch operations replace the fused kernels. `float16` "
            "is for GPUs only. `fp8` (e4m3, also written `fp8_e4m3`) needs a GPU of compute capability "
            f"{capability_text(FP8_CAPABILITY)} or more (Ada, Hopper): it halves the memory of bfloat16 and the bytes "
            "that attention reads, and has four significant bits instead of eight. Values beyond 448 are clipped; "
            "those of usual models are far below, and a checkpoint may have scales (`k_scale`, `v_scale` of a layer), "
            "which are used. `int8` is for CPUs: each head of each "
            "token is stored as integers with a scale of its own, 4 bytes, computed when it is stored. It takes "
            "about half the memory of bfloat16 (132 bytes instead of 256 for a head of 128), and attention reads "
            "half the bytes."
        ),
        examples=["bfloat16"],
        json_schema_extra=about(refused=dict.fromkeys(("fp8_e5m2", "fp8_inc"), _OTHER_8_BIT)),
    )

    @property
    def kv_offloading_bytes(self) -> int:
        return int((self.kv_offloading_size or 0) * 2**30)
