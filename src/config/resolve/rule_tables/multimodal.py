"""Rules about media in prompts. How a rule is written: ../rule.py."""

from __future__ import annotations

from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = ()

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R007",
        "counts of media have an older spelling",
        ("multimodal.limit_mm_per_prompt",),
        "`image=16,video=2` on the command line means {image: 16, video: 2}; this build refuses any limit but "
        "the empty one, since prompts hold no media.",
    ),
    StatedRule(
        "R152",
        "each process keeps a cache of media",
        ("multimodal.mm_processor_cache_gb", "server.api_server_count", "parallel.data_parallel_size"),
        "Cannot occur: no media are read, so no such cache takes memory.",
    ),
    StatedRule(
        "R153",
        "the largest shared object needs shared memory",
        ("multimodal.mm_shm_cache_max_object_size_mb", "multimodal.mm_processor_cache_type"),
        "Cannot occur: both are at their defaults in this build.",
    ),
    StatedRule(
        "R154",
        "an old option switches the cache of media off",
        ("multimodal.disable_mm_preprocessor_cache", "multimodal.mm_processor_cache_gb"),
        "It becomes `mm_processor_cache_gb: 0`, which is true of this build.",
    ),
    StatedRule(
        "R157",
        "media that no limit names",
        ("multimodal.limit_mm_per_prompt",),
        "Cannot occur: a prompt with media is answered 400.",
    ),
    StatedRule(
        "R158",
        "a share of a video",
        ("multimodal.video_pruning_rate",),
        "At least 0 and below 1; null leaves videos whole, and is all that this build takes.",
    ),
    StatedRule(
        "R159",
        "without measuring the encoder memory must be left free",
        ("multimodal.skip_mm_profiling",),
        "Cannot occur: there is no media encoder to measure.",
    ),
    StatedRule(
        "R160",
        "settings of decoders are checked by decoders",
        ("multimodal.media_io_kwargs", "multimodal.mm_processor_kwargs"),
        "Cannot occur: there are no decoders, and any setting is refused.",
    ),
)
