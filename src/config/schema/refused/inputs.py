"""Refused options of adapters and of images, audio and video."""

from __future__ import annotations

from typing import Any, Literal

from ..types import Count, Flag, Gibibytes, NumberFromZero, Whole
from .reasons import ANY_ADAPTERS, GENERATION_ONLY, LAYOUT_READ, NO_PROMPT_ADAPTERS, TEXT_ONLY, WHOLE_A
from .row import Refused

LORA: tuple[Refused, ...] = (
    Refused("fully_sharded_loras", Flag, False, "Split both matrices of an adapter over devices.", reason=WHOLE_A),
    Refused("default_mm_loras", dict[str, Any], {}, "Adapter for each kind of media in a prompt.", reason=TEXT_ONLY),
    Refused("enable_prompt_adapter", Flag, False, "Accept learned soft prompts.", reason=NO_PROMPT_ADAPTERS),
    Refused("max_prompt_adapters", Count, 1, "Maximum number of soft prompts in one batch.", reason=NO_PROMPT_ADAPTERS),
    Refused(
        "max_prompt_adapter_token", Whole, 0, "Maximum virtual tokens of a soft prompt.", reason=NO_PROMPT_ADAPTERS
    ),
    Refused(
        "max_lora_cls_labels",
        Count | None,
        None,
        "Maximum number of labels of a classifying adapter.",
        reason=GENERATION_ONLY,
    ),
    Refused(
        "specialize_active_lora",
        Flag,
        False,
        "Capture graphs by the number of adapters in the batch.",
        reason=ANY_ADAPTERS,
    ),
    Refused("enable_tower_connector_lora", Flag, False, "Apply adapters to the encoder of media.", reason=TEXT_ONLY),
    Refused("enable_moe_shared_loras", Flag, False, "Share parts of an adapter between experts.", reason=LAYOUT_READ),
    Refused(
        "enable_mixed_moe_lora_format", Flag, False, "Serve two layouts of adapters for experts.", reason=LAYOUT_READ
    ),
)
MULTIMODAL: tuple[Refused, ...] = (
    Refused(
        "limit_mm_per_prompt",
        dict[str, Any],
        {},
        "Maximum number of items of each kind of media in a prompt.",
        reason=TEXT_ONLY,
        notation="pairs",
    ),
    Refused("media_io_kwargs", dict[str, Any], {}, "Decoder settings for each kind of media.", reason=TEXT_ONLY),
    Refused("mm_processor_kwargs", dict[str, Any], {}, "Settings of the model's preprocessor.", reason=TEXT_ONLY),
    Refused(
        "mm_processor_cache_gb",
        Gibibytes,
        4.0,
        "GiB of memory for preprocessed media.",
        reason=TEXT_ONLY,
        same=(0,),
    ),
    Refused(
        "mm_processor_cache_type",
        Literal["lru", "shm"],
        "lru",
        "Keep preprocessed media per process or in shared memory.",
        reason=TEXT_ONLY,
    ),
    Refused("mm_shm_cache_max_object_size_mb", Count, 128, "MiB of one object in shared memory.", reason=TEXT_ONLY),
    Refused(
        "mm_encoder_tp_mode",
        Literal["weights", "data"],
        "weights",
        "Split the media encoder by its weights or by its batch.",
        reason=TEXT_ONLY,
    ),
    Refused("interleave_mm_strings", Flag, False, "Keep the order of media and text.", reason=TEXT_ONLY),
    Refused("skip_mm_profiling", Flag, False, "Do not measure the memory of the media encoder.", reason=TEXT_ONLY),
    Refused("video_pruning_rate", NumberFromZero | None, None, "Share of video tokens dropped.", reason=TEXT_ONLY),
    Refused(
        "image_input_type",
        Literal["pixel_values", "image_features"] | None,
        None,
        "Whether images are given as pixels or as features.",
        reason=TEXT_ONLY,
    ),
    Refused("image_token_id", Whole | None, None, "Token id that represents an image.", reason=TEXT_ONLY),
    Refused("image_input_shape", str | None, None, "Maximum shape of an image.", reason=TEXT_ONLY),
    Refused("image_feature_size", Count | None, None, "Number of tokens of an image.", reason=TEXT_ONLY),
    Refused("language_model_only", Flag, True, "Load the language model alone.", reason=TEXT_ONLY),
    Refused("mm_encoder_only", Flag, False, "Load the encoder of media alone.", reason=TEXT_ONLY),
    Refused("enable_mm_embeds", Flag, False, "Accept media as embedding vectors.", reason=TEXT_ONLY),
    Refused("mm_processor_device", str | None, None, "Device that prepares media.", reason=TEXT_ONLY),
    Refused("mm_device_do_normalize", Flag, True, "Normalise images on the device.", reason=TEXT_ONLY),
    Refused("mm_hasher_algorithm", Literal["blake3", "sha256", "sha512"], "blake3", "Hash of media.", reason=TEXT_ONLY),
    Refused("mm_ipc_gpu_memory_gb", Gibibytes, 0.0, "GiB of GPU memory to decode media.", reason=TEXT_ONLY),
    Refused(
        "mm_tensor_ipc",
        Literal["direct_rpc", "torch_shm"],
        "direct_rpc",
        "How media reach the engine.",
        reason=TEXT_ONLY,
    ),
    Refused("mm_encoder_attn_backend", str, "auto", "Kernels of the media encoder.", reason=TEXT_ONLY),
    Refused("mm_encoder_attn_dtype", str | None, None, "Number format of the media encoder.", reason=TEXT_ONLY),
    Refused("mm_encoder_fp8_scale_path", str | None, None, "File with scales of the media encoder.", reason=TEXT_ONLY),
    Refused("mm_encoder_fp8_scale_save_path", str | None, None, "File to write these scales to.", reason=TEXT_ONLY),
    Refused("mm_encoder_fp8_scale_save_margin", NumberFromZero, 1.5, "Factor of the written scales.", reason=TEXT_ONLY),
    Refused(
        "video_pruning_method", Literal["evs", "vidcom2"], "evs", "How video tokens are dropped.", reason=TEXT_ONLY
    ),
    Refused("ec_manager_config", dict[str, Any], {}, "Cache of encoded media.", reason=TEXT_ONLY),
    Refused("ec_transfer_config", dict[str, Any], {}, "Transfer of encoded media between servers.", reason=TEXT_ONLY),
)
