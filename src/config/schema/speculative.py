"""Section `speculative`: tokens that are guessed and then verified."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from .section import Section, about
from .types import Count, HumanInt

NO_DRAFTS = "this build drafts no tokens; every token comes from the model itself"


class SpeculativeConfig(Section):
    """Draft tokens."""

    json_flags: ClassVar[tuple[str, ...]] = ("--speculative-config",)

    method: Literal["ngram", "draft_model", "eagle", "eagle3", "medusa", "mtp", "suffix"] | None = Field(
        None,
        description="Who drafts.",
        examples=["ngram"],
        json_schema_extra=about(reload="process", devices=(), refused=NO_DRAFTS),
    )
    model: str | None = Field(
        None,
        min_length=1,
        description="The model that drafts: a hub id or a directory.",
        examples=["Qwen/Qwen3-0.6B"],
        json_schema_extra=about(reload="process", devices=(), kind="model", refused=NO_DRAFTS),
    )
    num_speculative_tokens: Count | None = Field(
        None,
        description="Tokens that are drafted ahead in each step.",
        examples=[4],
        json_schema_extra=about(
            reload="process", devices=(), aliases=("--num-speculative-tokens",), unit="tokens", refused=NO_DRAFTS
        ),
    )
    quantization: str | None = Field(
        None,
        min_length=1,
        description="How the weights of the drafting model are quantised.",
        examples=["awq"],
        json_schema_extra=about(reload="process", devices=(), refused=NO_DRAFTS),
    )
    draft_tensor_parallel_size: Count | None = Field(
        None,
        description="Devices of the drafting model.",
        examples=[1],
        json_schema_extra=about(reload="process", devices=(), unit="devices", refused=NO_DRAFTS),
    )
    max_model_len: HumanInt | None = Field(
        None,
        description="Longest sequence that is drafted for.",
        examples=["4k"],
        json_schema_extra=about(reload="process", devices=(), unit="tokens", refused=NO_DRAFTS),
    )
    disable_by_batch_size: Count | None = Field(
        None,
        description="Queued requests above which nothing is drafted for new ones.",
        examples=[32],
        json_schema_extra=about(reload="process", devices=(), unit="requests", refused=NO_DRAFTS),
    )
    prompt_lookup_max: Count | None = Field(
        None,
        description="Most trailing tokens that are looked up in the prompt.",
        examples=[4],
        json_schema_extra=about(reload="process", devices=(), unit="tokens", refused=NO_DRAFTS),
    )
    prompt_lookup_min: Count | None = Field(
        None,
        description="Fewest trailing tokens that are looked up in the prompt.",
        examples=[2],
        json_schema_extra=about(reload="process", devices=(), unit="tokens", refused=NO_DRAFTS),
    )
