"""Section `cache`: the KV cache, its size, its blocks, and reuse of shared prefixes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from .section import Section, about
from .types import Auto, Count, Flag, Share, Size, parse_whole


def _number_or_text(value: object) -> object:
    try:
        return parse_whole(value)
    except ValueError:
        return value


class CacheConfig(Section):
    """Memory for keys and values of running and remembered sequences."""

    block_size: Annotated[Literal["auto", 8, 16, 32, 64, 128], BeforeValidator(_number_or_text)] = Field(
        "auto",
        description=(
            "Tokens held by one KV cache block. Larger blocks make shorter block tables and coarser prefix reuse: "
            "only whole blocks are shared. `auto` is 16 on a CPU."
        ),
        examples=[16],
        json_schema_extra=about(reload="model", unit="tokens"),
    )
    gpu_memory_utilization: Share = Field(
        0.9,
        description=(
            "Share of the device's memory - on a CPU of the RAM that is free at start - that weights and KV cache may "
            "take together. More holds more sequences; too much leaves nothing for other programs."
        ),
        examples=[0.8],
        json_schema_extra=about(reload="model", unit="share of memory"),
    )
    kv_cache_memory_bytes: Size | Auto = Field(
        "auto",
        description=(
            "Memory for the KV cache. A written size is reserved exactly, and start fails if it is not there. `auto` "
            "on a CPU takes what max_num_seqs sequences of max_model_len need, at most 4 GiB and at most what "
            "gpu_memory_utilization leaves beside the weights."
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
