"""Rules about the step and the queue. How a rule is written: ../rule.py."""

from __future__ import annotations

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
        id="R112",
        title="limits of prompts in part need chunked prefill",
        fields=("scheduler.enable_chunked_prefill", *_PARTIAL),
        severity="warning",
        is_broken=lambda v: not v.enable_chunked_prefill and any(map(v.is_written, _PARTIAL)),
        message="without chunked prefill no prompt is computed in part, so limits of such prompts have no effect",
        why="max_num_partial_prefills, max_long_partial_prefills and long_prefill_token_threshold speak of prompts of "
        "which a piece is computed and the rest to come.",
        fixes=("set `scheduler.enable_chunked_prefill: true`, or remove the limits",),
    ),
    Rule(
        id="R244",
        title="a share of the step needs prompts that can be cut",
        fields=("scheduler.max_prefill_share", "scheduler.enable_chunked_prefill"),
        severity="warning",
        is_broken=lambda v: not v.enable_chunked_prefill and v.is_written("scheduler.max_prefill_share"),
        message="without chunked prefill no prompt is cut, so `scheduler.max_prefill_share` has no effect",
        why="A prompt that is longer than its share could never run beside answers.",
        fixes=("set `scheduler.enable_chunked_prefill: true`, or remove the share",),
    ),
    Rule(
        id="R245",
        title="prompts get at least a block per step",
        fields=("scheduler.max_prefill_share", "scheduler.max_num_batched_tokens", "cache.block_size"),
        severity="warning",
        is_broken=lambda v: (
            v.is_written("scheduler.max_prefill_share")
            and v.max_prefill_share * v.max_num_batched_tokens < v.block_size
        ),
        message=(
            "`scheduler.max_prefill_share` {max_prefill_share} of {max_num_batched_tokens} tokens is less than a block "
            "of {block_size}: while answers run, prompts hardly go on"
        ),
        why="A step that computes a handful of a prompt's tokens costs nearly as much as one that computes hundreds.",
        fixes=("raise `scheduler.max_prefill_share` or `scheduler.max_num_batched_tokens`",),
    ),
    Rule(
        id="R114",
        title="long prompts in part are some of those in part",
        fields=("scheduler.max_long_partial_prefills", "scheduler.max_num_partial_prefills"),
        is_broken=lambda v: v.max_long_partial_prefills > v.max_num_partial_prefills,
        message=(
            "`scheduler.max_long_partial_prefills` is {max_long_partial_prefills}, and only "
            "{max_num_partial_prefills} prompts may be computed in part"
        ),
        why="A limit above the one that holds for all prompts could never be reached.",
        fixes=(
            "set `scheduler.max_long_partial_prefills` to at most {max_num_partial_prefills}",
            "or raise `scheduler.max_num_partial_prefills`",
        ),
    ),
    Rule(
        id="R116",
        title="a long prompt fits into the context",
        fields=("scheduler.long_prefill_token_threshold", "model.max_model_len"),
        is_broken=lambda v: (
            v.is_written("scheduler.long_prefill_token_threshold") and v.long_prefill_token_threshold > v.max_model_len
        ),
        message=(
            "`scheduler.long_prefill_token_threshold` is {long_prefill_token_threshold}; a prompt has at most "
            "`model.max_model_len` = {max_model_len} tokens"
        ),
        why="No prompt could ever be a long one.",
        fixes=("set it to at most {max_model_len}, or leave it to auto",),
    ),
    Rule(
        id="R241",
        title="scheduler_cls is an import path",
        fields=("scheduler.scheduler_cls",),
        is_broken=lambda v: v.scheduler_cls != "auto" and split_import_path(v.scheduler_cls) is None,
        message="`scheduler.scheduler_cls` is no import path of a class: {scheduler_cls}",
        why="The engine imports the module and takes the class out of it.",
        fixes=("write `package.module:Class`, or auto",),
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
        "auto is 64 on a CPU, where more sequences than that slow each other down, and 256 on a GPU.",
    ),
    StatedRule(
        "R103",
        "the device chooses max_num_batched_tokens",
        ("scheduler.max_num_batched_tokens",),
        "auto is 2048 on a CPU and 8192 on a GPU, or more where max_num_seqs or whole prompts need it. A written value "
        "stays.",
    ),
    StatedRule(
        "R106",
        "chunked prefill is on unless switched off",
        ("scheduler.enable_chunked_prefill",),
        "Elsewhere context, device and other features decide; here it goes with all of them.",
    ),
    StatedRule(
        "R107",
        "chunked prefill goes with every model",
        ("scheduler.enable_chunked_prefill",),
        "No model that this build runs needs its prompt in one piece.",
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
        "R246",
        "answers keep a part of each step",
        ("scheduler.max_prefill_share", "scheduler.max_num_batched_tokens"),
        "Prompts get at most this share of max_num_batched_tokens, and what answers leave, while there are answers "
        "under way; without any they get the whole step. With max_prefill_share 1 only the answers' own tokens count.",
    ),
    StatedRule(
        "R113",
        "fewer long prompts in part let short ones pass",
        ("scheduler.max_long_partial_prefills", "scheduler.max_num_partial_prefills"),
        "auto is the same number for both, so that nobody passes. The first long prompt that waits is never passed by "
        "another long one.",
    ),
    StatedRule(
        "R115",
        "auto counts a prompt as long from 4 % of the context",
        ("scheduler.long_prefill_token_threshold", "model.max_model_len"),
        "0 means the same. It matters where max_long_partial_prefills is less than max_num_partial_prefills.",
    ),
    StatedRule(
        "R117",
        "media are not cut",
        ("scheduler.disable_chunked_mm_input",),
        "This build takes text alone, so the option is refused.",
    ),
    StatedRule(
        "R118",
        "graph sizes follow max_num_seqs",
        ("scheduler.cuda_graph_sizes", "scheduler.max_num_seqs"),
        "Unset: 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192 and so on below max_num_seqs, and that itself. "
        "One number n: 1, 2, 4 and each multiple of 8 up to n. Several: exactly those. None without graphs.",
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
        "R122",
        "auto is this build's own scheduler",
        ("scheduler.scheduler_cls",),
        "There is one engine core and one scheduler for it; a written class is imported or the start fails.",
    ),
    StatedRule(
        "R123",
        "a step is planned before the last one's tokens are known",
        ("scheduler.async_scheduling",),
        "auto does so on a GPU, and not on a CPU that computes with all its cores. Structured outputs, draft tokens "
        "and pipeline stages, which need the tokens earlier, are refused in this build.",
    ),
    StatedRule(
        "R127",
        "a step reserves what it needs",
        ("scheduler.num_lookahead_slots",),
        "There are no draft tokens in this build, and the option is refused.",
    ),
    StatedRule(
        "R131",
        "every layer has the same cache",
        ("scheduler.disable_hybrid_kv_cache_manager",),
        "Also where layers with a window stand between others; only true is taken.",
    ),
    StatedRule(
        "R222",
        "auto bounds the queue by the KV cache",
        ("scheduler.max_queued_tokens",),
        "16 times the tokens that the KV cache holds: about sixteen full caches of work.",
    ),
)
