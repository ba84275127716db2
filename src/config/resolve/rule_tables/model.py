"""Rules about the model, its precision, context and sampling defaults. How a rule is written: ../rule.py."""

from __future__ import annotations

from ...errors import EXIT_ENVIRONMENT
from ..model_files import is_hub_id
from ..rule import Rule, StatedRule
from ..values import Values


def _is_local(v: Values) -> bool:
    """Whether neither model nor tokenizer comes from the hub."""
    if is_hub_id(v.located("model.model")):
        return False
    tokenizer = v.config.model.tokenizer
    return tokenizer == "auto" or v.skip_tokenizer_init or not is_hub_id(v.located("model.tokenizer"))


RULES: tuple[Rule, ...] = (
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
        id="R212",
        title="override_generation_config holds sampling parameters",
        fields=("model.override_generation_config",),
        is_broken=lambda v: bool(v.sampling_problem),
        message="`model.override_generation_config`: {sampling_problem}",
        why="A parameter that nothing reads, or that every request would be refused for, is a mistake.",
        fixes=("`engine explain model.override_generation_config` shows an example",),
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
        "R006",
        "None and an empty text unset",
        ("model.tokenizer", "model.revision", "load.download_dir", "model.generation_config"),
        "On the command line and in variables; weaker layers then do not count and the default holds.",
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
)
