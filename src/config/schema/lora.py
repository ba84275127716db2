"""Section `lora`: low-rank adapters on top of a model."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .section import Section, about
from .types import Count, Flag, Numbers, Whole

NO_ADAPTERS = "this build applies no adapters; merge the adapter into the model's weights"
NO_SOFT_PROMPTS = "this build reads no prompt adapters; put the prompt's text into the request"


class LoRAConfig(Section):
    """Adapters that requests may choose."""

    enable_lora: Flag = Field(
        False,
        description="Make the model ready for low-rank adapters.",
        examples=[True],
        json_schema_extra=about(reload="process", devices=(), refused=NO_ADAPTERS),
    )
    enable_lora_bias: Flag = Field(
        False,
        description="Apply bias terms of adapters.",
        examples=[True],
        json_schema_extra=about(reload="process", devices=(), refused=NO_ADAPTERS),
    )
    max_loras: Count = Field(
        1,
        description="Most adapters in one batch.",
        examples=[4],
        json_schema_extra=about(reload="process", devices=(), unit="adapters", refused=NO_ADAPTERS),
    )
    max_lora_rank: Count = Field(
        16,
        description="Largest rank of an adapter.",
        examples=[64],
        json_schema_extra=about(reload="process", devices=(), refused=NO_ADAPTERS),
    )
    lora_extra_vocab_size: Whole = Field(
        256,
        ge=0,
        description="Room for tokens that adapters add.",
        examples=[256],
        json_schema_extra=about(reload="process", devices=(), unit="tokens", refused=NO_ADAPTERS),
    )
    lora_dtype: Literal["auto", "float16", "bfloat16"] = Field(
        "auto",
        description="Number format of adapters.",
        examples=["auto"],
        json_schema_extra=about(reload="process", devices=(), refused=NO_ADAPTERS),
    )
    max_cpu_loras: Whole | None = Field(
        None,
        description="Most adapters kept in host memory.",
        examples=[16],
        json_schema_extra=about(reload="process", devices=(), unit="adapters", refused=NO_ADAPTERS),
    )
    fully_sharded_loras: Flag = Field(
        False,
        description="Split both matrices of an adapter over devices.",
        examples=[True],
        json_schema_extra=about(reload="process", devices=(), refused=NO_ADAPTERS),
    )
    default_mm_loras: dict[str, Any] = Field(
        {},
        description="An adapter for each kind of media, applied to prompts that hold it.",
        examples=[{"image": "./adapters/vision"}],
        json_schema_extra=about(reload="process", devices=(), refused=NO_ADAPTERS),
    )
    long_lora_scaling_factors: Numbers = Field(
        (),
        description="Context scaling factors of adapters besides the base one.",
        examples=[[4.0]],
        json_schema_extra=about(reload="process", devices=(), refused=NO_ADAPTERS),
    )
    enable_prompt_adapter: Flag = Field(
        False,
        description="Accept learned soft prompts.",
        examples=[True],
        json_schema_extra=about(reload="process", devices=(), refused=NO_SOFT_PROMPTS),
    )
    max_prompt_adapters: Count = Field(
        1,
        description="Most soft prompts in one batch.",
        examples=[1],
        json_schema_extra=about(reload="process", devices=(), refused=NO_SOFT_PROMPTS),
    )
    max_prompt_adapter_token: Whole = Field(
        0,
        ge=0,
        description="Most virtual tokens of a soft prompt.",
        examples=[0],
        json_schema_extra=about(reload="process", devices=(), unit="tokens", refused=NO_SOFT_PROMPTS),
    )
