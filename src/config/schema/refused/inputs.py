"""Refused options of adapters and of images, audio and video."""

from __future__ import annotations

from typing import Any, Literal

from ..types import Count, Flag, Gibibytes, NumberFromZero, Numbers, Texts, Whole
from .reasons import NO_ADAPTERS, NO_PROMPT_ADAPTERS, TEXT_ONLY
from .row import Refused

ROWS: tuple[Refused, ...] = (
    # lora
    Refused("lora.enable_lora", Flag, False, NO_ADAPTERS, "Serve low-rank adapters (LoRA)."),
    Refused("lora.enable_lora_bias", Flag, False, NO_ADAPTERS, "Apply the bias terms of adapters."),
    Refused("lora.max_loras", Count, 1, NO_ADAPTERS, "Maximum number of adapters in one batch."),
    Refused("lora.max_lora_rank", Count, 16, NO_ADAPTERS, "Maximum rank of an adapter."),
    Refused("lora.lora_extra_vocab_size", Whole, 256, NO_ADAPTERS, "Maximum number of tokens that an adapter adds."),
    Refused(
        "lora.lora_dtype",
        Literal["auto", "float16", "bfloat16"],
        "auto",
        NO_ADAPTERS,
        "Number format of adapters.",
    ),
    Refused("lora.max_cpu_loras", Whole | None, None, NO_ADAPTERS, "Maximum number of adapters in host memory."),
    Refused("lora.fully_sharded_loras", Flag, False, NO_ADAPTERS, "Split both matrices of an adapter over devices."),
    Refused("lora.default_mm_loras", dict[str, Any], {}, NO_ADAPTERS, "Adapter for each kind of media in a prompt."),
    Refused("lora.long_lora_scaling_factors", Numbers, (), NO_ADAPTERS, "Context scaling factors of adapters."),
    Refused("lora.enable_prompt_adapter", Flag, False, NO_PROMPT_ADAPTERS, "Accept learned soft prompts."),
    Refused("lora.max_prompt_adapters", Count, 1, NO_PROMPT_ADAPTERS, "Maximum number of soft prompts in one batch."),
    Refused("lora.max_prompt_adapter_token", Whole, 0, NO_PROMPT_ADAPTERS, "Maximum virtual tokens of a soft prompt."),
    Refused("lora.lora_target_modules", Texts, (), NO_ADAPTERS, "Layers that adapters apply to."),
    Refused(
        "lora.max_lora_cls_labels",
        Count | None,
        None,
        NO_ADAPTERS,
        "Maximum number of labels of a classifying adapter.",
    ),
    Refused(
        "lora.specialize_active_lora",
        Flag,
        False,
        NO_ADAPTERS,
        "Capture graphs by the number of adapters in the batch.",
    ),
    Refused("lora.enable_tower_connector_lora", Flag, False, NO_ADAPTERS, "Apply adapters to the encoder of media."),
    Refused("lora.enable_moe_shared_loras", Flag, False, NO_ADAPTERS, "Share parts of an adapter between experts."),
    Refused(
        "lora.enable_mixed_moe_lora_format", Flag, False, NO_ADAPTERS, "Serve two layouts of adapters for experts."
    ),
    # multimodal
    Refused(
        "multimodal.limit_mm_per_prompt",
        dict[str, Any],
        {},
        TEXT_ONLY,
        "Maximum number of items of each kind of media in a prompt.",
        notation="pairs",
    ),
    Refused("multimodal.media_io_kwargs", dict[str, Any], {}, TEXT_ONLY, "Decoder settings for each kind of media."),
    Refused("multimodal.mm_processor_kwargs", dict[str, Any], {}, TEXT_ONLY, "Settings of the model's preprocessor."),
    Refused(
        "multimodal.mm_processor_cache_gb",
        Gibibytes,
        4.0,
        TEXT_ONLY,
        "GiB of memory for preprocessed media.",
        same=(0,),
    ),
    Refused(
        "multimodal.mm_processor_cache_type",
        Literal["lru", "shm"],
        "lru",
        TEXT_ONLY,
        "Keep preprocessed media per process or in shared memory.",
    ),
    Refused("multimodal.mm_shm_cache_max_object_size_mb", Count, 128, TEXT_ONLY, "MiB of one object in shared memory."),
    Refused(
        "multimodal.mm_encoder_tp_mode",
        Literal["weights", "data"],
        "weights",
        TEXT_ONLY,
        "Split the media encoder by its weights or by its batch.",
    ),
    Refused("multimodal.interleave_mm_strings", Flag, False, TEXT_ONLY, "Keep the order of media and text."),
    Refused("multimodal.skip_mm_profiling", Flag, False, TEXT_ONLY, "Do not measure the memory of the media encoder."),
    Refused("multimodal.video_pruning_rate", NumberFromZero | None, None, TEXT_ONLY, "Share of video tokens dropped."),
    Refused(
        "multimodal.image_input_type",
        Literal["pixel_values", "image_features"] | None,
        None,
        TEXT_ONLY,
        "Whether images are given as pixels or as features.",
    ),
    Refused("multimodal.image_token_id", Whole | None, None, TEXT_ONLY, "Token id that represents an image."),
    Refused("multimodal.image_input_shape", str | None, None, TEXT_ONLY, "Maximum shape of an image."),
    Refused("multimodal.image_feature_size", Count | None, None, TEXT_ONLY, "Number of tokens of an image."),
    Refused("multimodal.language_model_only", Flag, True, TEXT_ONLY, "Load the language model alone."),
    Refused("multimodal.mm_encoder_only", Flag, False, TEXT_ONLY, "Load the encoder of media alone."),
    Refused("multimodal.enable_mm_embeds", Flag, False, TEXT_ONLY, "Accept media as embedding vectors."),
    Refused("multimodal.mm_processor_device", str | None, None, TEXT_ONLY, "Device that prepares media."),
    Refused("multimodal.mm_device_do_normalize", Flag, True, TEXT_ONLY, "Normalise images on the device."),
    Refused(
        "multimodal.mm_hasher_algorithm", Literal["blake3", "sha256", "sha512"], "blake3", TEXT_ONLY, "Hash of media."
    ),
    Refused("multimodal.mm_ipc_gpu_memory_gb", Gibibytes, 0.0, TEXT_ONLY, "GiB of GPU memory to decode media."),
    Refused(
        "multimodal.mm_tensor_ipc",
        Literal["direct_rpc", "torch_shm"],
        "direct_rpc",
        TEXT_ONLY,
        "How media reach the engine.",
    ),
    Refused("multimodal.mm_encoder_attn_backend", str, "auto", TEXT_ONLY, "Kernels of the media encoder."),
    Refused("multimodal.mm_encoder_attn_dtype", str | None, None, TEXT_ONLY, "Number format of the media encoder."),
    Refused(
        "multimodal.mm_encoder_fp8_scale_path", str | None, None, TEXT_ONLY, "File with scales of the media encoder."
    ),
    Refused("multimodal.mm_encoder_fp8_scale_save_path", str | None, None, TEXT_ONLY, "File to write these scales to."),
    Refused(
        "multimodal.mm_encoder_fp8_scale_save_margin", NumberFromZero, 1.5, TEXT_ONLY, "Factor of the written scales."
    ),
    Refused(
        "multimodal.video_pruning_method", Literal["evs", "vidcom2"], "evs", TEXT_ONLY, "How video tokens are dropped."
    ),
    Refused("multimodal.ec_manager_config", dict[str, Any], {}, TEXT_ONLY, "Cache of encoded media."),
    Refused(
        "multimodal.ec_transfer_config", dict[str, Any], {}, TEXT_ONLY, "Transfer of encoded media between servers."
    ),
)
