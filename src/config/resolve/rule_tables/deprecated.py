"""Rules about deprecated options. The format of a rule: ../rule.py."""

from __future__ import annotations

from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = ()

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R049",
        "a QLoRA adapter is a setting of the loader",
        ("load.qlora_adapter_name_or_path", "load.model_loader_extra_config"),
        "The old option is mapped onto it with a warning (C123), and refused: this build loads no adapters.",
    ),
    StatedRule(
        "R053",
        "a task is a runner and a conversion",
        ("model.task", "model.runner", "model.convert"),
        "`generate` has no effect; `embed`, `classify`, `reward` and `score` become `runner: pooling` with "
        "a conversion, which this build refuses.",
    ),
    StatedRule(
        "R063",
        "attention over a shared prefix is never computed separately",
        ("model.disable_cascade_attn",),
        "The old option disables what this build does not do, so it is ignored with a warning.",
    ),
    StatedRule(
        "R069",
        "override_pooler_config is pooler_config",
        ("model.override_pooler_config", "model.pooler_config"),
        "The old option is mapped onto it with a warning (C123); different values in both are an error (C124).",
    ),
    StatedRule(
        "R091",
        "a file of scales needs an 8-bit KV cache",
        ("cache.quantization_param_path", "cache.kv_cache_dtype"),
        "The 8-bit cache of this build has no scales; the old option is ignored with a warning.",
    ),
    StatedRule(
        "R095",
        "preempted sequences need no swap space",
        ("cache.swap_space", "scheduler.preemption_mode"),
        "They free their blocks and are computed again; the old option is ignored with a warning.",
    ),
    StatedRule(
        "R101",
        "outputs are processed during the next step",
        ("scheduler.disable_async_output_proc",),
        "They keep the order of each request and never delay a step; the old option is ignored with a warning.",
    ),
    StatedRule(
        "R109",
        "chunked prefill and pooling",
        ("scheduler.enable_chunked_prefill", "model.runner", "model.task"),
        "Cannot occur: this build runs no pooling models.",
    ),
    StatedRule(
        "R124",
        "multi-step scheduling and draft tokens",
        ("scheduler.num_scheduler_steps", "speculative.method"),
        "Cannot occur: every step is scheduled, and draft tokens are refused.",
    ),
    StatedRule(
        "R125",
        "multi-step scheduling, chunked prefill and pipeline stages",
        ("scheduler.num_scheduler_steps", "scheduler.enable_chunked_prefill", "parallel.pipeline_parallel_size"),
        "Cannot occur: every step is scheduled, and there is one stage.",
    ),
    StatedRule(
        "R126",
        "multi-step scheduling on a CPU",
        ("scheduler.num_scheduler_steps", "device.device"),
        "Every step is scheduled on every device; the old option is ignored with a warning.",
    ),
    StatedRule(
        "R128",
        "tokens are streamed after every step",
        ("scheduler.multi_step_stream_outputs", "scheduler.num_scheduler_steps"),
        "There are no inner steps; the old option is ignored with a warning.",
    ),
    StatedRule(
        "R129",
        "prompts are not delayed",
        ("scheduler.scheduler_delay_factor",),
        "They join the running batch in the next step; the old option is ignored with a warning.",
    ),
    StatedRule(
        "R130",
        "preemption by swapping needs swap space",
        ("scheduler.preemption_mode", "cache.swap_space"),
        "Swapping is an error: preempted sequences are computed again.",
    ),
    StatedRule(
        "R191",
        "there is one block pool",
        ("scheduler.use_v2_block_manager",),
        "Both values of the old option are ignored with a warning.",
    ),
    StatedRule(
        "R071",
        "sleep mode needs CUDA",
        ("model.enable_sleep_mode",),
        "Cannot occur: engines on CPUs sleep too.",
    ),
    StatedRule(
        "R192",
        "lookahead slots are for tests of speculative decoding",
        ("scheduler.num_lookahead_slots",),
        "Cannot occur: only 0 is accepted, because this build drafts no tokens.",
    ),
)
