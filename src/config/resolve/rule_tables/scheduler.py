"""Rules about the step and the queue. How a rule is written: ../rule.py."""

from __future__ import annotations

from ..rule import Rule, StatedRule

LONG_CONTEXT = 32_768  # tokens, from which one-step prefill needs much memory for activations

RULES: tuple[Rule, ...] = (
    Rule(
        id="R104",
        title="without chunked prefill a step holds the longest prompt",
        fields=("scheduler.max_num_batched_tokens", "model.max_model_len", "scheduler.enable_chunked_prefill"),
        is_broken=lambda v: not v.enable_chunked_prefill and v.max_num_batched_tokens < v.max_model_len,
        message=(
            "without chunked prefill a step must hold the longest prompt: `scheduler.max_num_batched_tokens` is "
            "{max_num_batched_tokens}, `model.max_model_len` is {max_model_len}"
        ),
        why="A longer prompt could never run.",
        fixes=(
            "set `scheduler.max_num_batched_tokens` to at least {max_model_len}",
            "or `model.max_model_len` to at most {max_num_batched_tokens}",
            "or `scheduler.enable_chunked_prefill: true`",
        ),
    ),
    Rule(
        id="R105",
        title="a step holds a token of every sequence",
        fields=("scheduler.max_num_batched_tokens", "scheduler.max_num_seqs"),
        is_broken=lambda v: v.max_num_batched_tokens < v.max_num_seqs,
        message=(
            "a step must hold one token of every running sequence: `scheduler.max_num_batched_tokens` is "
            "{max_num_batched_tokens}, `scheduler.max_num_seqs` is {max_num_seqs}"
        ),
        why="Otherwise some running sequence would wait in every step.",
        fixes=(
            "set `scheduler.max_num_batched_tokens` to at least {max_num_seqs}, or leave it to auto",
            "or `scheduler.max_num_seqs` to at most {max_num_batched_tokens}",
        ),
    ),
    Rule(
        id="R110",
        title="long prompts in one step need memory",
        fields=("scheduler.enable_chunked_prefill", "model.max_model_len"),
        severity="warning",
        is_broken=lambda v: not v.enable_chunked_prefill and v.max_model_len > LONG_CONTEXT,
        message=(
            "without chunked prefill a prompt of up to {max_model_len} tokens is computed in one step, which needs "
            "much memory and holds up all other answers"
        ),
        why=f"Activations of a step grow with its tokens; from about {LONG_CONTEXT} on they rival the weights.",
        fixes=("set `scheduler.enable_chunked_prefill: true`, or a smaller `model.max_model_len`",),
    ),
    Rule(
        id="R211",
        title="the KV cache holds as many sequences as may run",
        fields=("scheduler.max_num_seqs", "cache.kv_cache_memory_bytes", "cache.num_gpu_blocks_override"),
        severity="warning",
        needs_model=True,
        is_broken=lambda v: 0 < v.num_kv_blocks < v.max_num_seqs and v.is_written("scheduler.max_num_seqs"),
        message="`scheduler.max_num_seqs` is {max_num_seqs}, and the KV cache has {num_kv_blocks} blocks",
        why="A running sequence holds at least one block.",
        fixes=("lower `scheduler.max_num_seqs`, or give the KV cache more memory",),
    ),
)

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R005",
        "a bare flag means true",
        ("scheduler.enable_chunked_prefill",),
        "--flag is true, --no-flag is false, and true or false may follow the flag.",
    ),
    StatedRule(
        "R099",
        "max_num_seqs trades waiting for parking",
        ("scheduler.max_num_seqs",),
        "Too low, late requests wait in the queue; too high, running ones are preempted when the KV cache runs short. "
        "Both show in the metrics.",
    ),
    StatedRule(
        "R100",
        "max_num_batched_tokens is prompts times length",
        ("scheduler.max_num_batched_tokens",),
        "2048 hold about twenty prompts of 100 tokens in one step.",
    ),
    StatedRule(
        "R102",
        "the device chooses max_num_seqs",
        ("scheduler.max_num_seqs",),
        "auto is 64 on a CPU, where more sequences than that slow each other down.",
    ),
    StatedRule(
        "R103",
        "the device chooses max_num_batched_tokens",
        ("scheduler.max_num_batched_tokens",),
        "auto is 2048 on a CPU, or more where max_num_seqs or whole prompts need it. A written value stays.",
    ),
    StatedRule(
        "R108",
        "chunked prefill can be switched off",
        ("scheduler.enable_chunked_prefill",),
        "Other systems use it whatever is asked; here a written false holds.",
    ),
    StatedRule(
        "R111",
        "decodes come first, prefill takes the rest",
        ("scheduler.enable_chunked_prefill", "scheduler.max_num_batched_tokens"),
        "The piece of a prompt is what running answers leave of max_num_batched_tokens.",
    ),
    StatedRule(
        "R120", "lower priority numbers first", ("scheduler.scheduling_policy",), "Equal numbers go by time of arrival."
    ),
    StatedRule(
        "R121",
        "fcfs refuses priorities",
        ("scheduler.scheduling_policy",),
        "A request with a non-zero priority is answered 400 under fcfs, since its wish would be ignored.",
    ),
    StatedRule(
        "R222",
        "auto bounds the queue by the KV cache",
        ("scheduler.max_queued_tokens",),
        "16 times the tokens that the KV cache holds: about sixteen full caches of work.",
    ),
)
