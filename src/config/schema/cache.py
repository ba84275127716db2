"""Section `cache`: the KV cache, its size, its blocks, and reuse of shared prefixes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from .section import Section, about
from .types import Auto, Count, Flag, Gibibytes, Share, Size, number_or_text

_NO_OTHER_8_BIT = "this build's 8-bit format is fp8 (e4m3), on GPUs; write fp8, or auto"
_NO_STATE_SPACE = "this build runs no state-space (Mamba) layers, so there is no such cache"


class CacheConfig(Section):
    """Memory for keys and values of running and remembered sequences."""

    block_size: Annotated[Literal["auto", 8, 16, 32, 64, 128], BeforeValidator(number_or_text)] = Field(
        "auto",
        description=(
            "Tokens held by one KV cache block. Larger blocks make shorter block tables and coarser prefix reuse: "
            "only whole blocks are shared. `auto` is 16 on a CPU, 64 on a GPU."
        ),
        examples=[16],
        json_schema_extra=about(
            reload="model",
            unit="tokens",
            refused={"1": "8 is the least: with one token per block the tables would cost more than they share"},
        ),
    )
    gpu_memory_utilization: Share = Field(
        0.9,
        description=(
            "Share of the memory that the engine may take. On a GPU it is of all the GPU has, and holds weights, KV "
            "cache and the activations of a step; on a CPU it is of the RAM that is free at start, for weights and KV "
            "cache. More holds more sequences; too much leaves nothing for other programs."
        ),
        examples=[0.8],
        json_schema_extra=about(reload="model", unit="share of memory"),
    )
    kv_cache_memory_bytes: Size | Auto = Field(
        "auto",
        description=(
            "Memory for the KV cache. A written size is reserved exactly, and start fails if it is not there. `auto` "
            "on a CPU takes what max_num_seqs sequences of max_model_len need, at most 4 GiB and at most what "
            "gpu_memory_utilization leaves beside the weights; on a GPU it takes all that is left of that."
        ),
        examples=["4GiB"],
        json_schema_extra=about(reload="model", unit="bytes"),
    )
    num_gpu_blocks_override: Count | None = Field(
        None,
        description=(
            "Use exactly so many KV cache blocks, whatever the memory allows. For tests of preemption; "
            "unset, the number follows from the memory."
        ),
        examples=[128],
        json_schema_extra=about(reload="model", unit="blocks"),
    )
    enable_prefix_caching: Flag = Field(
        True,
        description=(
            "Keep the KV blocks of finished requests and reuse them for prompts that start with the same tokens. "
            "Saves prefill time at no memory cost, since kept blocks are given up when space is needed; the time to "
            "the first token then shows whether a prefix was seen before."
        ),
        examples=[False],
        json_schema_extra=about(reload="model"),
    )
    prefix_caching_hash_algo: Literal["sha256", "sha256_cbor", "blake2b"] = Field(
        "sha256",
        description=(
            "How blocks of tokens are named for finding shared prefixes. `sha256` is fast; `sha256_cbor` names them so "
            "that any program with a CBOR library makes the same names, at some two microseconds more per block; "
            "`blake2b` is about as fast as `sha256` and keeps 16 bytes per block instead of 32."
        ),
        examples=["sha256_cbor"],
        json_schema_extra=about(
            reload="model",
            refused={
                "builtin": "clients could make two prompts with one name; write sha256",
                "xxhash": "clients could make two prompts with one name, and read each other's cache; write sha256",
                "xxhash_cbor": "clients could make two prompts with one name; write sha256_cbor",
            },
        ),
    )
    kv_cache_dtype: Literal["auto", "bfloat16", "float32", "float16", "fp8", "fp8_e4m3"] = Field(
        "auto",
        description=(
            "Number format of keys and values. `auto` is the model's own. `bfloat16` beside float32 weights holds "
            "twice the tokens in the same memory at the cost of some digits; on a CPU a format other than the model's "
            "makes attention slower, since plain PyTorch operations then replace the fused kernels. "
            "`float16` is for GPUs. So is `fp8` (e4m3, also written `fp8_e4m3`), from compute capability 8.9 on (Ada, "
            "Hopper): half the memory of bfloat16, and half of what attention reads, at four significant bits instead "
            "of eight. There are no scales: numbers beyond 448 are cut off; those of usual models are far below."
        ),
        examples=["bfloat16"],
        json_schema_extra=about(
            reload="model",
            refused=dict.fromkeys(("fp8_e5m2", "fp8_inc"), _NO_OTHER_8_BIT),
        ),
    )
    calculate_kv_scales: Flag = Field(
        False,
        description="Work out the scales of an 8-bit KV cache from the first activations.",
        examples=[False],
        json_schema_extra=about(reload="model", devices=(), refused="the 8-bit cache of this build has no scales"),
    )
    kv_sharing_fast_prefill: Flag = Field(
        False,
        description="For models whose layers share keys and values: let those layers skip the prompt.",
        examples=[False],
        json_schema_extra=about(
            reload="model", devices=(), refused="no model that this build runs shares keys and values between layers"
        ),
    )
    mamba_cache_dtype: Literal["auto", "float32"] = Field(
        "auto",
        description="Number format of the convolution and state-space caches of Mamba layers.",
        examples=["auto"],
        json_schema_extra=about(reload="model", devices=(), refused=_NO_STATE_SPACE),
    )
    mamba_ssm_cache_dtype: Literal["auto", "float32"] = Field(
        "auto",
        description="Number format of the state-space part alone.",
        examples=["auto"],
        json_schema_extra=about(reload="model", devices=(), refused=_NO_STATE_SPACE),
    )
    cpu_offload_gb: Gibibytes = Field(
        0.0,
        description="Weights that are kept in the memory of the host and copied to the device in every pass.",
        examples=[0],
        json_schema_extra=about(
            reload="model",
            devices=(),
            unit="GiB",
            refused="this build keeps all weights on the device that computes",
        ),
    )
