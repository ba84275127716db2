"""Rules about the step and the queue. The format of a rule: ../rule.py."""

from __future__ import annotations

from ..import_path import split_import_path
from ..rule import Rule

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
        is_broken=lambda v: (
            not v.scheduler.enable_chunked_prefill and v.scheduler.max_num_batched_tokens < v.model.max_model_len
        ),
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
        id="R109",
        title="a step can hold the longest text of a model that needs all of it",
        fields=("scheduler.max_num_batched_tokens", "model.max_model_len"),
        needs_model=True,
        is_broken=lambda v: (
            v.files is not None
            and v.files.spec.needs_whole_prompts
            and v.scheduler.max_num_batched_tokens < v.model.max_model_len
        ),
        message=(
            "a step must hold the longest text: `scheduler.max_num_batched_tokens` is {max_num_batched_tokens}, "
            "`model.max_model_len` is {max_model_len}"
        ),
        why=(
            "The results of this model are made of all tokens of a text, or its first tokens depend on the last ones, "
            "so a text is computed in one step. A longer one could never be computed."
        ),
        fixes=(
            "set `scheduler.max_num_batched_tokens` to at least {max_model_len}, or leave it to auto",
            "or `model.max_model_len` to at most {max_num_batched_tokens}",
        ),
    ),
    Rule(
        id="R105",
        title="a step can hold one token of every sequence",
        fields=("scheduler.max_num_batched_tokens", "scheduler.max_num_seqs"),
        is_broken=lambda v: v.scheduler.max_num_batched_tokens < v.scheduler.max_num_seqs,
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
        is_broken=lambda v: not v.scheduler.enable_chunked_prefill and v.model.max_model_len > LONG_CONTEXT,
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
        is_broken=lambda v: not v.scheduler.enable_chunked_prefill and any(map(v.is_written, _PARTIAL)),
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
        is_broken=lambda v: not v.scheduler.enable_chunked_prefill and v.is_written("scheduler.max_prefill_share"),
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
            and v.scheduler.max_prefill_share * v.scheduler.max_num_batched_tokens < v.cache.block_size
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
        is_broken=lambda v: v.scheduler.max_long_partial_prefills > v.scheduler.max_num_partial_prefills,
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
            v.is_written("scheduler.long_prefill_token_threshold")
            and v.scheduler.long_prefill_token_threshold > v.model.max_model_len
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
        is_broken=lambda v: (
            v.scheduler.scheduler_cls != "auto" and split_import_path(v.scheduler.scheduler_cls) is None
        ),
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
        is_broken=lambda v: (
            0 < v.memory.num_kv_blocks < v.scheduler.max_num_seqs and v.is_written("scheduler.max_num_seqs")
        ),
        message="`scheduler.max_num_seqs` is {max_num_seqs}, but the KV cache has {num_kv_blocks} blocks",
        why="A running sequence needs at least one block.",
        fixes=("lower `scheduler.max_num_seqs`, or give the KV cache more memory",),
    ),
)
