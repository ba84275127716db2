"""Rules about the step and the queue. The format of a rule: ../rule.py."""

from __future__ import annotations

from ...auto_values import (
    LONG_PROMPT_SHARE,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    QUEUED_PER_KV_TOKEN,
    STATES_SHARE,
    by_device,
)
from ...graph_sizes import usual_sizes
from ..import_path import split_import_path
from ..rule import Rule, StatedRule

_PARTIAL = (
    "scheduler.max_num_partial_prefills",
    "scheduler.max_long_partial_prefills",
    "scheduler.long_prefill_token_threshold",
)
LONG_CONTEXT = 32_768  # tokens, from which one-step prefill needs much memory for activations

RULES: tuple[Rule, ...] = (
    Rule(
        id="R104",
        title="without chunked prefill a step can hold the longest prompt",
        fields=("scheduler.max_num_batched_tokens", "model.max_model_len", "scheduler.enable_chunked_prefill"),
        is_broken=lambda v: not v.enable_chunked_prefill and v.max_num_batched_tokens < v.max_model_len,
        message=(
            "without chunked prefill a step must hold the longest prompt: `scheduler.max_num_batched_tokens` is "
            "{max_num_batched_tokens}, `model.max_model_len` is {max_model_len}"
        ),
        why="A longer prompt could never be computed.",
        fixes=(
            "set `scheduler.max_num_batched_tokens` to at least {max_model_len}",
            "or `model.max_model_len` to at most {max_num_batched_tokens}",
            "or `scheduler.enable_chunked_prefill: true`",
        ),
    ),
    Rule(
        id="R105",
        title="a step can hold one token of every sequence",
        fields=("scheduler.max_num_batched_tokens", "scheduler.max_num_seqs"),
        is_broken=lambda v: v.max_num_batched_tokens < v.max_num_seqs,
        message=(
            "a step must hold one token of every running sequence: `scheduler.max_num_batched_tokens` is "
            "{max_num_batched_tokens}, `scheduler.max_num_seqs` is {max_num_seqs}"
        ),
        why="Otherwise a running sequence would have to wait in every step.",
        fixes=(
            "set `scheduler.max_num_batched_tokens` to at least {max_num_seqs}, or leave it to auto",
            "or `scheduler.max_num_seqs` to at most {max_num_batched_tokens}",
        ),
    ),
    Rule(
        id="R110",
        title="long prompts in one step need much memory",
        fields=("scheduler.enable_chunked_prefill", "model.max_model_len"),
        severity="warning",
        is_broken=lambda v: not v.enable_chunked_prefill and v.max_model_len > LONG_CONTEXT,
        message=(
            "without chunked prefill a prompt of up to {max_model_len} tokens is computed in one step, which needs "
            "much memory and delays all other answers"
        ),
        why=f"Activations of a step grow with its tokens; from about {LONG_CONTEXT} tokens they are as large as the "
        "weights.",
        fixes=("set `scheduler.enable_chunked_prefill: true`, or a smaller `model.max_model_len`",),
    ),
    Rule(
        id="R112",
        title="limits of partial prefills need chunked prefill",
        fields=("scheduler.enable_chunked_prefill", *_PARTIAL),
        severity="warning",
        is_broken=lambda v: not v.enable_chunked_prefill and any(map(v.is_written, _PARTIAL)),
        message="without chunked prefill no prompt is computed in parts, so limits of partial prefills have no effect",
        why="max_num_partial_prefills, max_long_partial_prefills and long_prefill_token_threshold limit prompts of "
        "which "
        "only a part is computed.",
        fixes=("set `scheduler.enable_chunked_prefill: true`, or remove the limits",),
    ),
    Rule(
        id="R244",
        title="max_prefill_share needs chunked prefill",
        fields=("scheduler.max_prefill_share", "scheduler.enable_chunked_prefill"),
        severity="warning",
        is_broken=lambda v: not v.enable_chunked_prefill and v.is_written("scheduler.max_prefill_share"),
        message="without chunked prefill no prompt is split, so `scheduler.max_prefill_share` has no effect",
        why="A prompt that is longer than its share could never be computed together with answers.",
        fixes=("set `scheduler.enable_chunked_prefill: true`, or remove the share",),
    ),
    Rule(
        id="R245",
        title="prompts get at least one block per step",
        fields=("scheduler.max_prefill_share", "scheduler.max_num_batched_tokens", "cache.block_size"),
        severity="warning",
        is_broken=lambda v: (
            v.is_written("scheduler.max_prefill_share")
            and v.max_prefill_share * v.max_num_batched_tokens < v.block_size
        ),
        message=(
            "`scheduler.max_prefill_share` {max_prefill_share} of {max_num_batched_tokens} tokens is less than a block "
            "of {block_size}: while answers run, prompts make hardly any progress"
        ),
        why="A step with a few tokens of a prompt takes nearly as long as one with hundreds.",
        fixes=("raise `scheduler.max_prefill_share` or `scheduler.max_num_batched_tokens`",),
    ),
    Rule(
        id="R114",
        title="the limit of long partial prefills is at most the limit of all",
        fields=("scheduler.max_long_partial_prefills", "scheduler.max_num_partial_prefills"),
        is_broken=lambda v: v.max_long_partial_prefills > v.max_num_partial_prefills,
        message=(
            "`scheduler.max_long_partial_prefills` is {max_long_partial_prefills}, but "
            "`scheduler.max_num_partial_prefills` is {max_num_partial_prefills}"
        ),
        why="A limit above the one of all prompts could never be reached.",
        fixes=(
            "set `scheduler.max_long_partial_prefills` to at most {max_num_partial_prefills}",
            "or raise `scheduler.max_num_partial_prefills`",
        ),
    ),
    Rule(
        id="R116",
        title="the threshold of a long prompt is within the context",
        fields=("scheduler.long_prefill_token_threshold", "model.max_model_len"),
        is_broken=lambda v: (
            v.is_written("scheduler.long_prefill_token_threshold") and v.long_prefill_token_threshold > v.max_model_len
        ),
        message=(
            "`scheduler.long_prefill_token_threshold` is {long_prefill_token_threshold}; a prompt has at most "
            "`model.max_model_len` = {max_model_len} tokens"
        ),
        why="No prompt could ever count as long.",
        fixes=("set it to at most {max_model_len}, or leave it to auto",),
    ),
    Rule(
        id="R241",
        title="scheduler_cls is an import path",
        fields=("scheduler.scheduler_cls",),
        is_broken=lambda v: v.scheduler_cls != "auto" and split_import_path(v.scheduler_cls) is None,
        message="`scheduler.scheduler_cls` is not the import path of a class: {scheduler_cls}",
        why="The engine imports the class from this module.",
        fixes=("write `package.module:Class`, or auto",),
    ),
    Rule(
        id="R211",
        title="the KV cache has a block for every running sequence",
        fields=("scheduler.max_num_seqs", "cache.kv_cache_memory_bytes", "cache.num_gpu_blocks_override"),
        severity="warning",
        needs_model=True,
        is_broken=lambda v: 0 < v.num_kv_blocks < v.max_num_seqs and v.is_written("scheduler.max_num_seqs"),
        message="`scheduler.max_num_seqs` is {max_num_seqs}, but the KV cache has {num_kv_blocks} blocks",
        why="A running sequence needs at least one block.",
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
        "max_num_seqs: a trade-off between waiting and preemption",
        ("scheduler.max_num_seqs",),
        "If it is too low, requests wait in the queue; if it is too high, running sequences are preempted when the KV "
        "cache is full. The metrics show both.",
    ),
    StatedRule(
        "R100",
        "max_num_batched_tokens counts the tokens of all prompts",
        ("scheduler.max_num_batched_tokens",),
        "With 2048 a step can hold about twenty prompts of 100 tokens.",
    ),
    StatedRule(
        "R102",
        "the device decides max_num_seqs",
        ("scheduler.max_num_seqs",),
        f"auto is {by_device(MAX_NUM_SEQS)}. On a CPU more sequences slow each other down. It is less for a model with "
        f"recurrent states whose states would take more than 1/{STATES_SHARE} of the memory that the weights leave.",
    ),
    StatedRule(
        "R103",
        "the device decides max_num_batched_tokens",
        ("scheduler.max_num_batched_tokens",),
        f"auto is {by_device(MAX_NUM_BATCHED_TOKENS)}, or more if max_num_seqs or unsplit prompts need it. A written "
        "value is "
        "never changed.",
    ),
    StatedRule(
        "R106",
        "chunked prefill is on by default",
        ("scheduler.enable_chunked_prefill",),
        "In other engines it depends on context, device and other features; here it works with all of them.",
    ),
    StatedRule(
        "R107",
        "chunked prefill works with every model",
        ("scheduler.enable_chunked_prefill",),
        "No model of this build needs its prompt in one step.",
    ),
    StatedRule(
        "R108",
        "chunked prefill can be disabled",
        ("scheduler.enable_chunked_prefill",),
        "Some engines use it in any case; here a written false disables it.",
    ),
    StatedRule(
        "R111",
        "answers come first, prompts get the rest",
        ("scheduler.enable_chunked_prefill", "scheduler.max_num_batched_tokens"),
        "A prompt gets what running answers leave of max_num_batched_tokens.",
    ),
    StatedRule(
        "R246",
        "answers keep a share of each step",
        ("scheduler.max_prefill_share", "scheduler.max_num_batched_tokens"),
        "While answers are running, prompts get at most this share of max_num_batched_tokens and at most what answers "
        "leave; otherwise they get the whole step. With max_prefill_share 1 only the tokens of answers are reserved.",
    ),
    StatedRule(
        "R113",
        "a lower limit for long prompts lets short ones overtake",
        ("scheduler.max_long_partial_prefills", "scheduler.max_num_partial_prefills"),
        "auto is the same number for both, so that no prompt overtakes. A long prompt never overtakes a long prompt "
        "that "
        "waits.",
    ),
    StatedRule(
        "R115",
        f"auto counts a prompt as long from {LONG_PROMPT_SHARE:.0%} of the context",
        ("scheduler.long_prefill_token_threshold", "model.max_model_len"),
        "0 means the same. It has an effect if max_long_partial_prefills is less than max_num_partial_prefills.",
    ),
    StatedRule(
        "R117",
        "media are not split",
        ("scheduler.disable_chunked_mm_input",),
        "This build accepts text only, so the option is refused.",
    ),
    StatedRule(
        "R118",
        "max_num_seqs decides the graph sizes",
        ("scheduler.cuda_graph_sizes", "scheduler.max_num_seqs"),
        f"Unset: {', '.join(map(str, usual_sizes(256)[:-1]))} and so on below max_num_seqs, and max_num_seqs. A single "
        "number n: 1, 2, 4 and each multiple of 8 up to n. Several numbers: exactly those. None without graphs.",
    ),
    StatedRule(
        "R120",
        "lower priority values run first",
        ("scheduler.scheduling_policy",),
        "Requests of equal priority run in the order of arrival.",
    ),
    StatedRule(
        "R121",
        "fcfs refuses priorities",
        ("scheduler.scheduling_policy",),
        "With fcfs a request with a priority other than 0 is answered 400, because it would be ignored.",
    ),
    StatedRule(
        "R122",
        "auto is this build's scheduler",
        ("scheduler.scheduler_cls",),
        "A class that cannot be imported ends the start.",
    ),
    StatedRule(
        "R123",
        "a step is planned before the tokens of the previous one are known",
        ("scheduler.async_scheduling",),
        "auto is on for a GPU, and off for a CPU, which computes with all its cores. Structured outputs go with it, "
        "because the runner, which has the tokens first, has the grammars too. Draft tokens and pipeline stages, which "
        "need the tokens earlier, are refused in this build.",
    ),
    StatedRule(
        "R127",
        "a step reserves the slots it needs",
        ("scheduler.num_lookahead_slots",),
        "There are no draft tokens in this build, and the option is refused.",
    ),
    StatedRule(
        "R131",
        "layers with a window keep the window only",
        ("scheduler.disable_hybrid_kv_cache_manager",),
        "On a CPU. A prompt still needs blocks for all its tokens in every layer when it is admitted; those before the "
        "window are given back while it is computed.",
    ),
    StatedRule(
        "R222",
        "auto limits the queue by the KV cache",
        ("scheduler.max_queued_tokens",),
        f"{QUEUED_PER_KV_TOKEN} times the number of tokens that the KV cache holds.",
    ),
)
