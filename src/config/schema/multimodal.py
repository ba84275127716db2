"""Section `multimodal`: images, audio and video in prompts."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .section import Section, about
from .types import Count, Flag, Gibibytes, NumberFromZero, Whole

TEXT_ONLY = "this build serves text; it reads no images, audio or video"


class MultiModalConfig(Section):
    """Media in prompts. This build serves text."""

    limit_mm_per_prompt: dict[str, Any] = Field(
        {},
        description="Most items of each kind of media in a prompt.",
        examples=[{"image": 4}],
        json_schema_extra=about(notation="pairs", reload="process", devices=(), refused=TEXT_ONLY),
    )
    media_io_kwargs: dict[str, Any] = Field(
        {},
        description="Settings of the decoder of each kind of media.",
        examples=[{"video": {"num_frames": 40}}],
        json_schema_extra=about(reload="process", devices=(), refused=TEXT_ONLY),
    )
    mm_processor_kwargs: dict[str, Any] = Field(
        {},
        description="Settings of the model's own preprocessor.",
        examples=[{"num_crops": 4}],
        json_schema_extra=about(reload="process", devices=(), refused=TEXT_ONLY),
    )
    mm_processor_cache_gb: Gibibytes = Field(
        4.0,
        description="Memory for preprocessed media that are seen again.",
        examples=[4],
        json_schema_extra=about(reload="process", devices=(), same=(0,), unit="GiB", refused=TEXT_ONLY),
    )
    mm_processor_cache_type: Literal["lru", "shm"] = Field(
        "lru",
        description="That memory as a table per process or as one that is shared.",
        examples=["lru"],
        json_schema_extra=about(reload="process", devices=(), refused=TEXT_ONLY),
    )
    mm_shm_cache_max_object_size_mb: Count = Field(
        128,
        description="Largest object in shared memory.",
        examples=[128],
        json_schema_extra=about(reload="process", devices=(), unit="MiB", refused=TEXT_ONLY),
    )
    mm_encoder_tp_mode: Literal["weights", "data"] = Field(
        "weights",
        description="Split the media encoder by its weights or by its batch.",
        examples=["weights"],
        json_schema_extra=about(reload="process", devices=(), refused=TEXT_ONLY),
    )
    interleave_mm_strings: Flag = Field(
        False,
        description="Keep the places of media between pieces of text.",
        examples=[True],
        json_schema_extra=about(reload="process", devices=(), refused=TEXT_ONLY),
    )
    skip_mm_profiling: Flag = Field(
        False,
        description="Leave the media encoder out of the measurement of memory at start.",
        examples=[True],
        json_schema_extra=about(reload="process", devices=(), refused=TEXT_ONLY),
    )
    video_pruning_rate: NumberFromZero | None = Field(
        None,
        lt=1,
        description="Share of the tokens of a video that is dropped.",
        examples=[0.5],
        json_schema_extra=about(reload="process", devices=(), refused=TEXT_ONLY),
    )
    image_input_type: Literal["pixel_values", "image_features"] | None = Field(
        None,
        description="Images as pixels or as features.",
        examples=["pixel_values"],
        json_schema_extra=about(reload="process", devices=(), refused=TEXT_ONLY),
    )
    image_token_id: Whole | None = Field(
        None,
        ge=0,
        description="Token that stands for an image.",
        examples=[32000],
        json_schema_extra=about(reload="process", devices=(), refused=TEXT_ONLY),
    )
    image_input_shape: str | None = Field(
        None,
        min_length=1,
        description="Largest shape of an image.",
        examples=["1,3,336,336"],
        json_schema_extra=about(reload="process", devices=(), refused=TEXT_ONLY),
    )
    image_feature_size: Count | None = Field(
        None,
        description="Positions that an image takes.",
        examples=[576],
        json_schema_extra=about(reload="process", devices=(), unit="tokens", refused=TEXT_ONLY),
    )
