"""Rules about options of older releases. How a rule is written: ../rule.py."""

from __future__ import annotations

from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = ()

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R049",
        "a QLoRA adapter is a setting of the loader",
        ("load.qlora_adapter_name_or_path", "load.model_loader_extra_config"),
        "The old option is put there with a warning (C123), and refused there: this build loads no adapters.",
    ),
    StatedRule(
        "R053",
        "a task is a runner and a conversion",
        ("model.task", "model.runner", "model.convert"),
        "`generate` changes nothing; `embed`, `classify`, `reward` and `score` become `runner: pooling` with "
        "a conversion, which this build refuses.",
    ),
    StatedRule(
        "R063",
        "attention is never split by a shared prefix",
        ("model.disable_cascade_attn",),
        "The old option switched off what this build does not do, so it is dropped with a warning.",
    ),
    StatedRule(
        "R069",
        "override_pooler_config is pooler_config",
        ("model.override_pooler_config", "model.pooler_config"),
        "The old option is put there with a warning (C123); both at once with different values are an error (C124).",
    ),
    StatedRule(
        "R091",
        "a file of scales needs an 8-bit KV cache",
        ("cache.quantization_param_path", "cache.kv_cache_dtype"),
        "The 8-bit cache of this build has no scales; the old option is dropped with a warning.",
    ),
    StatedRule(
        "R095",
        "preempted sequences need no swap space",
        ("cache.swap_space", "scheduler.preemption_mode"),
        "They give their blocks back and are computed again; the old option is dropped with a warning.",
    ),
    StatedRule(
        "R101",
        "outputs are processed beside the next step",
        ("scheduler.disable_async_output_proc",),
        "They keep the order of each request and never hold up a step; the old option is dropped with a warning.",
    ),
    StatedRule(
        "R109",
        "chunked prefill and pooling",
        ("scheduler.enable_chunked_prefill", "model.runner", "model.task"),
        "Cannot occur: this build runs no pooling models.",
    ),
    StatedRule(
        "R124",
        "several steps at once and drafts",
        ("scheduler.num_scheduler_steps", "speculative.method"),
        "Cannot occur: every step is scheduled, and drafting is refused.",
    ),
    StatedRule(
        "R125",
        "several steps at once, chunked prefill and stages",
        ("scheduler.num_scheduler_steps", "scheduler.enable_chunked_prefill", "parallel.pipeline_parallel_size"),
        "Cannot occur: every step is scheduled, and there is one stage.",
    ),
    StatedRule(
        "R126",
        "several steps at once on a CPU",
        ("scheduler.num_scheduler_steps", "device.device"),
        "Every step is scheduled on every device; the old option is dropped with a warning.",
    ),
    StatedRule(
        "R128",
        "inner steps are streamed",
        ("scheduler.multi_step_stream_outputs", "scheduler.num_scheduler_steps"),
        "Tokens are streamed after every step; the old option is dropped with a warning.",
    ),
    StatedRule(
        "R129",
        "prompts are not held back",
        ("scheduler.scheduler_delay_factor",),
        "They join the running batch at once; the old option is dropped with a warning.",
    ),
    StatedRule(
        "R130",
        "preemption by swapping needs swap space",
        ("scheduler.preemption_mode", "cache.swap_space"),
        "Swapping is an error here: preempted sequences are computed again.",
    ),
    StatedRule(
        "R191",
        "there is one block pool",
        ("scheduler.use_v2_block_manager",),
        "Either value of the old option is dropped with a warning.",
    ),
    StatedRule(
        "R071",
        "sleeping needs CUDA",
        ("model.enable_sleep_mode",),
        "Cannot occur: this build does not sleep, and refuses the option.",
    ),
    StatedRule(
        "R192",
        "slots ahead are for tests of drafting",
        ("scheduler.num_lookahead_slots",),
        "Cannot occur: only 0 is taken, since nothing is drafted.",
    ),
)
