"""Rules about media in prompts. The format of a rule: ../rule.py."""

from __future__ import annotations

from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = ()

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R007",
        "limits of media have an older notation",
        ("multimodal.limit_mm_per_prompt",),
        "`image=16,video=2` on the command line means {image: 16, video: 2}; this build accepts only an "
        "empty mapping, because prompts contain no media.",
    ),
    StatedRule(
        "R152",
        "each process has a cache of media",
        ("multimodal.mm_processor_cache_gb", "server.api_server_count", "parallel.data_parallel_size"),
        "Cannot occur: no media are read, so no such cache takes memory.",
    ),
    StatedRule(
        "R153",
        "the limit of shared objects needs the shared cache",
        ("multimodal.mm_shm_cache_max_object_size_mb", "multimodal.mm_processor_cache_type"),
        "Cannot occur: both are at their defaults in this build.",
    ),
    StatedRule(
        "R154",
        "an old option disables the cache of media",
        ("multimodal.disable_mm_preprocessor_cache", "multimodal.mm_processor_cache_gb"),
        "It becomes `mm_processor_cache_gb: 0`, which describes this build.",
    ),
    StatedRule(
        "R157",
        "media without a limit",
        ("multimodal.limit_mm_per_prompt",),
        "Cannot occur: a prompt with media is answered 400.",
    ),
    StatedRule(
        "R158",
        "the pruned share of a video",
        ("multimodal.video_pruning_rate",),
        "At least 0 and below 1; null prunes nothing, and is the only accepted value.",
    ),
    StatedRule(
        "R159",
        "without profiling, memory for the encoder must be left free",
        ("multimodal.skip_mm_profiling",),
        "Cannot occur: there is no media encoder to measure.",
    ),
    StatedRule(
        "R160",
        "decoders check their settings",
        ("multimodal.media_io_kwargs", "multimodal.mm_processor_kwargs"),
        "Cannot occur: there are no decoders, and all settings are refused.",
    ),
)
