"""Rules across options, as data: which options a rule binds, when it is broken, what is said, and how to mend it.

Numbers up to R197 are those of the catalogue of serving options that other systems share; R201 and up are ours.
Rules are checked on decided values, all at once (checker.py). `STATED` lists rules that hold by construction, so that
`engine explain` knows them too.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..errors import EXIT_ENVIRONMENT, EXIT_INVALID_CONFIGURATION
from .model_files import is_hub_id
from .values import Values

LONG_CONTEXT = 32_768  # tokens, from which one-step prefill needs much memory for activations


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`message` and `fixes` are templates over option names and the numbers of `Values.numbers`.

    Attributes:
        fields: options that the rule binds; their lines are shown. A rule waits until all of them are decided.
        why: the reason, for `engine explain`.
        needs_model: the rule compares with the model's files.
        about_machine: the rule compares with this machine; where the deployment runs elsewhere it may hold.
    """

    id: str
    title: str
    fields: tuple[str, ...]
    is_broken: Callable[[Values], bool]
    message: str
    why: str
    fixes: tuple[str, ...] = ()
    severity: Literal["error", "warning"] = "error"
    needs_model: bool = False
    about_machine: bool = False
    exit_code: int = EXIT_INVALID_CONFIGURATION


@dataclass(frozen=True, slots=True)
class StatedRule:
    """A rule that cannot be broken, and what makes it hold."""

    id: str
    title: str
    fields: tuple[str, ...]
    why: str


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def _is_local(v: Values) -> bool:
    """Whether neither model nor tokenizer comes from the hub."""
    if is_hub_id(v.located("model.model")):
        return False
    tokenizer = v.config.model.tokenizer
    return tokenizer == "auto" or v.skip_tokenizer_init or not is_hub_id(v.located("model.tokenizer"))


RULES: tuple[Rule, ...] = (
    Rule(
        id="R024",
        title="chat_template is a file or a template",
        fields=("server.chat_template",),
        is_broken=lambda v: v.chat_template is not None and v.template_text is None,
        message="`server.chat_template` is neither a file that can be read nor a template",
        why="A value that names an existing file is read; a text that holds `{{` or `{%` is the template itself.",
        fixes=("check the file's name, which is relative to the file that wrote it",),
    ),
    Rule(
        id="R055",
        title="a chat template needs a tokenizer",
        fields=("model.skip_tokenizer_init", "server.chat_template"),
        is_broken=lambda v: v.skip_tokenizer_init and v.chat_template is not None,
        message="without a tokenizer there is no chat, so `server.chat_template` can have no effect",
        why="With skip_tokenizer_init requests carry token ids; whatever needs text cannot work.",
        fixes=("remove `server.chat_template`, or `model.skip_tokenizer_init`",),
    ),
    Rule(
        id="R057",
        title="max_logprobs -1 lifts the cap",
        fields=("model.max_logprobs",),
        severity="warning",
        is_broken=lambda v: v.max_logprobs == -1,
        message="`model.max_logprobs` is -1: one request can ask for the whole vocabulary at every position",
        why="Memory for such an answer is its length times the vocabulary.",
        fixes=("write the largest number that your clients need",),
    ),
    Rule(
        id="R084",
        title="kv_cache_memory_bytes beats gpu_memory_utilization",
        fields=("cache.gpu_memory_utilization", "cache.kv_cache_memory_bytes"),
        severity="warning",
        is_broken=lambda v: (
            v.is_written("cache.kv_cache_memory_bytes")
            and v.is_written("cache.gpu_memory_utilization")
            and v.num_gpu_blocks_override is None
        ),
        message="`cache.gpu_memory_utilization` has no effect beside `cache.kv_cache_memory_bytes`",
        why="A written size is reserved exactly; the share is only used to work one out.",
        fixes=("remove one of the two",),
    ),
    Rule(
        id="R085",
        title="num_gpu_blocks_override beats sizes",
        fields=("cache.num_gpu_blocks_override", "cache.kv_cache_memory_bytes", "cache.gpu_memory_utilization"),
        severity="warning",
        is_broken=lambda v: (
            v.num_gpu_blocks_override is not None
            and (v.is_written("cache.kv_cache_memory_bytes") or v.is_written("cache.gpu_memory_utilization"))
        ),
        message="with `cache.num_gpu_blocks_override` no other size of the KV cache has an effect",
        why="The override is meant for tests of preemption and replaces the number worked out from memory.",
        fixes=("remove `cache.num_gpu_blocks_override`",),
    ),
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
        id="R201",
        title="an address that others reach needs a key",
        fields=("server.host", "server.api_key", "server.auth"),
        is_broken=lambda v: v.auth == "key" and not v.api_key and not is_loopback(v.host),
        message="`server.host` is {host}, which other machines reach, and there is no `server.api_key`",
        why="Whoever reaches the port could use the model and read its metrics.",
        fixes=(
            "set `server.api_key`, for example `api_key: {{env: API_KEY}}`",
            "or write `auth: none` to serve without keys",
            "or listen on 127.0.0.1",
        ),
    ),
    Rule(
        id="R202",
        title="the KV cache holds the longest sequence",
        fields=("model.max_model_len", "cache.kv_cache_memory_bytes", "cache.num_gpu_blocks_override"),
        needs_model=True,
        is_broken=lambda v: v.num_kv_tokens < v.max_model_len and v.is_kv_written,
        message=(
            "one sequence of {max_model_len} tokens needs {one_sequence} of KV cache; there are {kv_cache} "
            "= {num_kv_tokens} tokens"
        ),
        why="A request within max_model_len that can never finish would be accepted.",
        fixes=(
            "set `model.max_model_len` to at most {num_kv_tokens}, or leave it to auto",
            "or give the KV cache at least {one_sequence_exact} with `cache.kv_cache_memory_bytes`",
        ),
    ),
    Rule(
        id="R203",
        title="weights and KV cache fit into memory",
        fields=("cache.kv_cache_memory_bytes", "cache.num_gpu_blocks_override"),
        needs_model=True,
        about_machine=True,
        exit_code=EXIT_ENVIRONMENT,
        is_broken=lambda v: v.is_kv_written and v.total_bytes > v.machine.available_memory_bytes,
        message=("weights ({weights}) and KV cache ({kv_cache}) need {total}; this machine has {available} available"),
        why="The engine would be killed while it starts, or push other programs out of memory.",
        fixes=("leave `cache.kv_cache_memory_bytes` to auto, or set it to at most {kv_room}", "{smaller_weights}"),
    ),
    Rule(
        id="R204",
        title="the weights leave room for a KV cache",
        fields=("model.model", "model.dtype", "cache.gpu_memory_utilization"),
        needs_model=True,
        about_machine=True,
        exit_code=EXIT_ENVIRONMENT,
        is_broken=lambda v: not v.is_kv_written and v.num_kv_blocks == 0,
        message=(
            "the weights need {weights} in {dtype}; `cache.gpu_memory_utilization` {gpu_memory_utilization} of the "
            "{available} available is {budget}"
        ),
        why="Weights and KV cache share this budget, and without a KV cache nothing can run.",
        fixes=("{smaller_weights}", "choose a smaller model, or free memory on this machine"),
    ),
    Rule(
        id="R205",
        title="max_model_len stays within the model's own limit",
        fields=("model.max_model_len",),
        needs_model=True,
        is_broken=lambda v: v.max_model_len > v.model_limit,
        message="`model.max_model_len` is {max_model_len}; the model was made for {model_limit} tokens",
        why="Positions beyond what a model was made for give nonsense without any error.",
        fixes=(
            "set `model.max_model_len` to at most {model_limit}, or leave it to auto",
            "or, if you know that it goes further, raise `hf_overrides.max_position_embeddings` with a rope scaling",
        ),
    ),
    Rule(
        id="R206",
        title="the memory of this machine holds the longest sequence",
        fields=("model.max_model_len", "cache.gpu_memory_utilization"),
        needs_model=True,
        about_machine=True,
        is_broken=lambda v: v.num_kv_blocks > 0 and v.num_kv_tokens < v.max_model_len and not v.is_kv_written,
        message=(
            "one sequence of {max_model_len} tokens needs {one_sequence} of KV cache; beside the weights ({weights}) "
            "this machine's budget of {budget} leaves {kv_cache} = {num_kv_tokens} tokens"
        ),
        why="A request within max_model_len that can never finish would be accepted.",
        fixes=(
            "set `model.max_model_len` to at most {num_kv_tokens}, or leave it to auto",
            "{smaller_weights}",
            "or raise `cache.gpu_memory_utilization` or free memory on this machine",
        ),
    ),
    Rule(
        id="R207",
        title="a sequence has a prompt and an answer",
        fields=("model.max_model_len",),
        is_broken=lambda v: v.max_model_len < 2 and v.is_written("model.max_model_len"),
        message="`model.max_model_len` is {max_model_len}; a prompt and one token of an answer need 2",
        why="No request could be served.",
        fixes=("set `model.max_model_len` to at least 2, or leave it to auto",),
    ),
    Rule(
        id="R208",
        title="auth none and keys contradict each other",
        fields=("server.auth", "server.api_key"),
        is_broken=lambda v: v.auth == "none" and bool(v.api_key),
        message="`server.auth` is none, but there is a `server.api_key`",
        why="One of the two is not meant, and guessing wrong opens the server.",
        fixes=("remove `auth: none` to check keys, or `api_key` to serve without",),
    ),
    Rule(
        id="R209",
        title="bfloat16 is slow on a CPU without it",
        fields=("model.dtype",),
        severity="warning",
        about_machine=True,
        is_broken=lambda v: v.dtype == "bfloat16" and not v.machine.has_bfloat16 and v.is_written("model.dtype"),
        message="this CPU has no bfloat16 instructions: bfloat16 saves memory here, and computes slower than float32",
        why="Without them every number is widened to float32 before it is used.",
        fixes=("take `dtype: float32` if memory allows",),
    ),
    Rule(
        id="R210",
        title="more threads than cores",
        fields=("device.num_threads",),
        severity="warning",
        about_machine=True,
        is_broken=lambda v: v.num_threads > v.machine.num_cores,
        message="`device.num_threads` is {num_threads}; this process may use {num_cores} cores",
        why="Threads of one computation wait for each other, so a thread without a core delays all.",
        fixes=("set `device.num_threads` to at most {num_cores}, or leave it to auto",),
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
    Rule(
        id="R212",
        title="override_generation_config holds sampling parameters",
        fields=("model.override_generation_config",),
        is_broken=lambda v: bool(v.sampling_problem),
        message="`model.override_generation_config`: {sampling_problem}",
        why="A parameter that nothing reads, or that every request would be refused for, is a mistake.",
        fixes=("`engine explain model.override_generation_config` shows an example",),
    ),
    Rule(
        id="R213",
        title="a gap in a body is shorter than the whole",
        fields=("server.body_idle_timeout", "server.body_timeout"),
        severity="warning",
        is_broken=lambda v: v.body_idle_timeout > v.body_timeout,
        message="`server.body_idle_timeout` is longer than `server.body_timeout`, so it is never reached",
        why="The whole body times out first.",
        fixes=("make `server.body_idle_timeout` the shorter one",),
    ),
    Rule(
        id="R214",
        title="without restarts there is no limit to them",
        fields=("server.max_engine_restarts", "server.on_engine_death"),
        severity="warning",
        is_broken=lambda v: v.on_engine_death == "exit" and v.is_written("server.max_engine_restarts"),
        message="`server.max_engine_restarts` has no effect with `on_engine_death: exit`",
        why="The server ends at the first death of the engine.",
        fixes=("remove one of the two",),
    ),
    Rule(
        id="R215",
        title="an engine in the API process cannot be restarted",
        fields=("server.on_engine_death", "server.disable_frontend_multiprocessing"),
        is_broken=lambda v: (
            v.disable_frontend_multiprocessing
            and v.on_engine_death == "restart"
            and v.is_written("server.on_engine_death")
        ),
        message="with `server.disable_frontend_multiprocessing` there is no engine process that could be restarted",
        why="A crash of the engine is then a crash of the server; its supervisor restarts both.",
        fixes=("write `on_engine_death: exit`, or keep the engine in its own process",),
    ),
    Rule(
        id="R216",
        title="hub options need a hub model",
        fields=("model.model", "model.revision", "model.hf_token", "load.download_dir"),
        severity="warning",
        is_broken=lambda v: (
            any(v.is_written(path) for path in ("model.revision", "model.hf_token", "load.download_dir"))
            and _is_local(v)
        ),
        message="`{model}` does not come from the hub, so `revision`, `hf_token` and `download_dir` have no effect",
        why="They say which files are downloaded, with whose rights, and to where.",
        fixes=("remove them",),
    ),
    Rule(
        id="R217",
        title="no tokenizer is loaded",
        fields=("model.tokenizer", "model.skip_tokenizer_init"),
        severity="warning",
        is_broken=lambda v: v.skip_tokenizer_init and v.is_written("model.tokenizer"),
        message="`model.tokenizer` has no effect with `model.skip_tokenizer_init`",
        why="Requests carry token ids, so nothing is tokenised.",
        fixes=("remove one of the two",),
    ),
    Rule(
        id="R218",
        title="hf_overrides change something",
        fields=("model.hf_overrides",),
        severity="warning",
        needs_model=True,
        is_broken=lambda v: bool(v.unused_overrides),
        message="`model.hf_overrides`: nothing reads {unused_overrides}, and config.json has no such key",
        why="A misspelt key would leave the model as it is without a word.",
        fixes=("take a key that the model's config.json has",),
    ),
)

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R001",
        "numbers may carry a unit",
        ("model.max_model_len", "scheduler.max_num_batched_tokens", "scheduler.max_queued_tokens"),
        "k, m, g, t are powers of 1000 and may follow a fraction (25.6k); K, M, G, T are powers of 1024.",
    ),
    StatedRule(
        "R002",
        "no fraction of a binary unit",
        ("model.max_model_len", "scheduler.max_num_batched_tokens", "scheduler.max_queued_tokens"),
        "1.5K is refused, and the message offers 1.5k; use of 1024 with a fraction is more often a slip than a wish.",
    ),
    StatedRule(
        "R003",
        "auto takes the largest context that fits",
        ("model.max_model_len",),
        "auto, or -1: the model's own limit, or what the KV cache holds if that is less.",
    ),
    StatedRule(
        "R004",
        "mappings whole or by key",
        ("model.hf_overrides", "model.override_generation_config"),
        "On the command line a mapping is one JSON text, or dotted keys, or both; the parts are merged in order.",
    ),
    StatedRule(
        "R005",
        "a bare flag means true",
        ("scheduler.enable_chunked_prefill",),
        "--flag is true, --no-flag is false, and true or false may follow the flag.",
    ),
    StatedRule(
        "R006",
        "None and an empty text unset",
        ("model.tokenizer", "model.revision", "load.download_dir", "model.generation_config"),
        "On the command line and in variables; weaker layers then do not count and the default holds.",
    ),
    StatedRule(
        "R023",
        "a template in a request is refused",
        ("server.chat_template",),
        "The server's chat_template applies, else the tokenizer's own: a template is code, and clients send none.",
    ),
    StatedRule(
        "R030",
        "any one of the keys opens the API",
        ("server.api_key",),
        "No key leaves it open; see R201 for when that is refused.",
    ),
    StatedRule(
        "R031",
        "keys guard every route but health",
        ("server.api_key",),
        "Other servers guard only the versioned prefixes; here an open route is a written exception.",
    ),
    StatedRule(
        "R037",
        "response_role is the role of generated messages",
        ("server.response_role",),
        "Messages that the client sent keep theirs.",
    ),
    StatedRule(
        "R043",
        "the API name is the model's name unless others are given",
        ("model.served_model_name", "model.model"),
        "With several names any is accepted, and the first is shown in responses and metrics.",
    ),
    StatedRule(
        "R044", "the tokenizer is the model's own", ("model.tokenizer", "model.model"), "Unless another is named."
    ),
    StatedRule(
        "R051",
        "auto takes the checkpoint's format",
        ("model.dtype",),
        "bfloat16 stays bfloat16 and float32 stays float32; float16 becomes float32 on a CPU.",
    ),
    StatedRule(
        "R054",
        "without a tokenizer requests carry token ids",
        ("model.skip_tokenizer_init",),
        "Text prompts, chat and stop strings are refused with 400, and answers hold token ids.",
    ),
    StatedRule(
        "R066",
        "the context limit counts prompt and answer",
        ("model.max_model_len",),
        "A request is refused if its prompt leaves no room, and cut at the limit otherwise.",
    ),
    StatedRule(
        "R067",
        "overrides go over the model's file",
        ("model.generation_config", "model.override_generation_config"),
        "With auto they are merged over generation_config.json; with none only they apply.",
    ),
    StatedRule(
        "R068",
        "max_new_tokens of the file is the default of max_tokens",
        ("model.generation_config",),
        "A request that names no max_tokens gets as many; one that does is not bound by it.",
    ),
    StatedRule("R078", "one seed for all", ("model.seed",), "Every part of the engine draws from the same seed."),
    StatedRule(
        "R079",
        "auto is safetensors",
        ("load.load_format",),
        "Other systems fall back to pickle files; they can run code, so here they are refused.",
    ),
    StatedRule(
        "R083",
        "the memory share lies in (0, 1]",
        ("cache.gpu_memory_utilization",),
        "It binds this instance and takes no notice of other instances' plans, only of what they use already.",
    ),
    StatedRule(
        "R086",
        "the device chooses the block size",
        ("cache.block_size",),
        "auto is 16 on a CPU; any size of the list works on a CPU.",
    ),
    StatedRule(
        "R087", "block sizes are powers of two", ("cache.block_size",), "8, 16, 32, 64 and 128; others are refused."
    ),
    StatedRule(
        "R092",
        "prefix caching is on unless switched off",
        ("cache.enable_prefix_caching",),
        "Kept blocks are given up when space is needed, so it costs no memory.",
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
        "R221",
        "auto KV cache is what can be filled",
        ("cache.kv_cache_memory_bytes",),
        "The least of: max_num_seqs sequences of max_model_len; 4 GiB, or one sequence of a written max_model_len if "
        "that is more; what gpu_memory_utilization of the available memory leaves beside the weights.",
    ),
    StatedRule(
        "R222",
        "auto bounds the queue by the KV cache",
        ("scheduler.max_queued_tokens",),
        "16 times the tokens that the KV cache holds: about sixteen full caches of work.",
    ),
    StatedRule(
        "R223",
        "auto takes every core",
        ("device.num_threads",),
        "Those of the process: affinity and the limits of its container are counted.",
    ),
    StatedRule(
        "R224", "auto logs for who reads", ("server.log_format",), "human if stderr is a terminal, json otherwise."
    ),
    StatedRule("R225", "auto takes the best device", ("device.device",), "This build has one: the CPU."),
)
