"""Rules about adapters. The format of a rule: ../rule.py."""

from __future__ import annotations

from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = ()

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R012",
        "an adapter is name=path or an object",
        ("server.lora_modules",),
        "Cannot occur: this build applies no adapters and refuses the option in both forms.",
    ),
    StatedRule(
        "R161",
        "adapter options need enable_lora",
        (
            "lora.enable_lora",
            "lora.max_loras",
            "lora.max_lora_rank",
            "lora.lora_extra_vocab_size",
            "lora.lora_dtype",
            "lora.max_cpu_loras",
            "lora.fully_sharded_loras",
            "lora.enable_lora_bias",
            "lora.long_lora_scaling_factors",
            "lora.default_mm_loras",
        ),
        "Cannot occur: all of them accept only their defaults.",
    ),
    StatedRule(
        "R162",
        "adapters at start need enable_lora",
        ("server.lora_modules", "lora.enable_lora"),
        "Cannot occur: both are refused.",
    ),
    StatedRule(
        "R163",
        "host memory can hold the adapters of a batch",
        ("lora.max_cpu_loras", "lora.max_loras"),
        "Cannot occur: both are at their defaults in this build.",
    ),
    StatedRule(
        "R164",
        "adapters use the format of the model",
        ("lora.lora_dtype", "model.dtype"),
        "Cannot occur: only auto is accepted.",
    ),
    StatedRule(
        "R165",
        "adapters with other scaling factors",
        ("lora.long_lora_scaling_factors",),
        "Cannot occur: no factors are accepted.",
    ),
    StatedRule(
        "R166",
        "splitting both matrices of an adapter",
        ("lora.fully_sharded_loras", "parallel.tensor_parallel_size"),
        "Cannot occur: there is one device.",
    ),
    StatedRule(
        "R167",
        "adapters by kind of media",
        ("lora.default_mm_loras",),
        "Cannot occur: this build reads no media and applies no adapters.",
    ),
    StatedRule(
        "R168",
        "two adapter options are deprecated in other engines",
        ("lora.enable_lora_bias", "lora.lora_extra_vocab_size"),
        "Other engines have announced their removal without a replacement; this build refuses both.",
    ),
    StatedRule(
        "R169",
        "prompt adapter limits need prompt adapters",
        ("lora.enable_prompt_adapter", "lora.max_prompt_adapters", "lora.max_prompt_adapter_token"),
        "Cannot occur: prompt adapters are refused, and so are limits of them.",
    ),
)
