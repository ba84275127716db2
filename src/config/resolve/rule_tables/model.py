"""Rules about the model, its precision, context and sampling defaults. How a rule is written: ../rule.py."""

from __future__ import annotations

from ...errors import EXIT_ENVIRONMENT
from ..facts import ROPE_KINDS
from ..import_path import split_import_path
from ..model_files import is_hub_id
from ..rule import Rule, StatedRule
from ..values import Values

_OF_THE_HUB = ("model.revision", "model.tokenizer_revision", "model.hf_token", "load.download_dir")
_OF_THE_TOKENIZER = ("model.tokenizer", "model.tokenizer_mode", "model.tokenizer_revision")


def _is_local(v: Values) -> bool:
    """Whether neither model nor tokenizer nor config.json comes from the hub."""
    model = v.config.model
    named = ["model.model"]
    named += ["model.tokenizer"] * (model.tokenizer != "auto" and not model.skip_tokenizer_init)
    named += ["model.hf_config_path"] * (model.hf_config_path != "auto")
    return not any(is_hub_id(v.located(path)) for path in named)


RULES: tuple[Rule, ...] = (
    Rule(
        id="R242",
        title="logits_processor_pattern is a regular expression",
        fields=("model.logits_processor_pattern",),
        is_broken=lambda v: bool(v.pattern_problem),
        message="`model.logits_processor_pattern` is no regular expression: {pattern_problem}",
        why="Import paths that requests name are matched against it as a whole, in Python's syntax.",
        fixes=("write for instance `mypackage[.]logits:.+`",),
    ),
    Rule(
        id="R243",
        title="logits processors are named by import paths",
        fields=("model.logits_processors",),
        is_broken=lambda v: not all(map(split_import_path, v.logits_processors)),
        message="`model.logits_processors` holds what is no import path of a class: {logits_processors}",
        why="The engine imports the module and takes the class out of it.",
        fixes=("write each as `package.module:Class`",),
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
        id="R062",
        title="disable_sliding_window needs a window",
        fields=("model.disable_sliding_window",),
        severity="warning",
        needs_model=True,
        is_broken=lambda v: v.disable_sliding_window and v.window is None,
        message="`model.disable_sliding_window` has no effect: this model has no sliding window",
        why="It lets every layer see the whole sequence and ends the context at the window.",
        fixes=("remove it",),
    ),
    Rule(
        id="R065",
        title="rope_theta accompanies rope_scaling",
        fields=("model.rope_theta", "model.rope_scaling"),
        severity="warning",
        is_broken=lambda v: v.is_written("model.rope_theta") and not v.rope_scaling,
        message="`model.rope_theta` is {rope_theta} and there is no `model.rope_scaling`",
        why="Another base alone turns all positions in a way that the model was not trained with.",
        fixes=("add the scaling that the base belongs to, or remove it",),
    ),
    Rule(
        id="R281",
        title="one source for rotary positions",
        fields=("model.rope_theta", "model.rope_scaling", "model.hf_overrides"),
        is_broken=lambda v: bool(v.rope_problem),
        message="`model.hf_overrides` contradicts the rope options: {rope_problem}",
        why="Which one counts could only be guessed.",
        fixes=("keep one of the two",),
    ),
    Rule(
        id="R282",
        title="a rope scaling is of a kind that this build computes",
        fields=("model.rope_scaling",),
        is_broken=lambda v: bool(v.rope_scaling) and v.rope_kind not in ROPE_KINDS,
        message="`model.rope_scaling` must name its kind as `rope_type`: one of {rope_kinds}",
        why="Without a kind that is known the other numbers would have no effect.",
        fixes=("add `rope_type`; `engine explain model.rope_scaling` shows an example",),
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
            "the weights need {weights} in {dtype}{steps}; `cache.gpu_memory_utilization` {gpu_memory_utilization} of "
            "the {memory} is {budget}"
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
            "one sequence of {max_model_len} tokens needs {one_sequence} of KV cache; beside the weights ({weights}"
            "{steps}) this machine's budget of {budget} leaves {kv_cache} = {num_kv_tokens} tokens"
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
        is_broken=lambda v: (
            v.device == "cpu" and v.dtype == "bfloat16" and not v.machine.has_bfloat16 and v.is_written("model.dtype")
        ),
        message="this CPU has no bfloat16 instructions: bfloat16 saves memory here, and computes slower than float32",
        why="Without them every number is widened to float32 before it is used.",
        fixes=("take `dtype: float32` if memory allows",),
    ),
    Rule(
        id="R230",
        title="Triton's interpreter has no bfloat16",
        fields=("model.dtype", "cache.kv_cache_dtype", "device.device"),
        about_machine=True,
        is_broken=lambda v: v.decisions.is_interpreted and "bfloat16" in (v.dtype, v.kv_cache_dtype),
        message="Triton's interpreter, which runs in the place of a GPU here, computes bfloat16 wrongly",
        why="It takes the bits of a bfloat16 for a whole number.",
        fixes=("write `dtype: float32` or `float16`, or leave it to auto",),
    ),
    Rule(
        id="R231",
        title="float16 is for GPUs",
        fields=("model.dtype", "cache.kv_cache_dtype", "device.device"),
        about_machine=True,  # on which `device: auto` depends
        is_broken=lambda v: v.device == "cpu" and "float16" in (v.dtype, v.kv_cache_dtype),
        message="float16 runs on GPUs only, and `device.device` is {device}",
        why="This build's CPU kernels compute in bfloat16 (the same memory, a wider range) and in float32.",
        fixes=("write bfloat16 or float32, or leave it to auto",),
    ),
    Rule(
        id="R232",
        title="weights in fewer bits are for CPUs",
        fields=("model.quantization", "device.device"),
        is_broken=lambda v: v.device == "cuda" and v.quantization is not None,
        message="`model.quantization` {quantization} has kernels for CPUs only, and `device.device` is cuda",
        why="The schemes of this build are made for the instructions of CPUs.",
        fixes=("remove `model.quantization`, or write `device: cpu`",),
    ),
    Rule(
        id="R233",
        title="batch_invariant is slow on a GPU",
        fields=("model.batch_invariant", "device.device"),
        severity="warning",
        is_broken=lambda v: v.device == "cuda" and v.batch_invariant,
        message="`model.batch_invariant` on a GPU computes one row at a time in plain PyTorch: many times slower",
        why="The GPU's kernels divide their work by what the batch holds, and no graph is captured without them.",
        fixes=("remove it where answers need not be repeatable, or write `device: cpu`",),
    ),
    Rule(
        id="R236",
        title="logits processors keep a GPU waiting",
        fields=("model.logits_processors", "device.device"),
        severity="warning",
        is_broken=lambda v: v.device == "cuda" and bool(v.logits_processors),
        message="with `model.logits_processors` the GPU waits for the host in every step, and no graph is replayed",
        why="They are code of the host that sees each step's logits before a token is drawn, and the next step begins "
        "with that token.",
        fixes=("let the requests that need one name it: `model.logits_processor_pattern`",),
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
        fields=("model.model", *_OF_THE_HUB),
        severity="warning",
        is_broken=lambda v: any(v.is_written(path) for path in _OF_THE_HUB) and _is_local(v),
        message=(
            "`{model}` does not come from the hub, so `revision`, `tokenizer_revision`, `hf_token` and `download_dir` "
            "have no effect"
        ),
        why="They say which files are downloaded, with whose rights, and to where.",
        fixes=("remove them",),
    ),
    Rule(
        id="R217",
        title="no tokenizer is loaded",
        fields=(*_OF_THE_TOKENIZER, "model.skip_tokenizer_init"),
        severity="warning",
        is_broken=lambda v: v.skip_tokenizer_init and any(v.is_written(path) for path in _OF_THE_TOKENIZER),
        message=(
            "`model.tokenizer`, `tokenizer_mode` and `tokenizer_revision` have no effect with "
            "`model.skip_tokenizer_init`"
        ),
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
        "R058",
        "raw is before every change, processed after all of them",
        ("model.logprobs_mode",),
        "Processed ones come after processors, bias, penalties, temperature, min_p, top_k and top_p; logits are not "
        "brought to a sum of one.",
    ),
    StatedRule(
        "R070",
        "without a pattern no request names a processor",
        ("model.logits_processor_pattern",),
        "Such a request is answered 400, and nothing is imported.",
    ),
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
        (
            *("model.hf_overrides", "model.rope_scaling", "model.override_generation_config"),
            "load.model_loader_extra_config",
        ),
        "On the command line a mapping is one JSON text, or dotted keys, or both; the parts are merged in order.",
    ),
    StatedRule(
        "R006",
        "None and an empty text unset",
        (
            *("model.tokenizer", "model.revision", "model.tokenizer_revision", "model.hf_config_path"),
            *("load.download_dir", "model.generation_config", "load.model_loader_extra_config"),
        ),
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
        "R045",
        "config.json is the model's own",
        ("model.hf_config_path", "model.model"),
        "Unless another directory or hub id is named.",
    ),
    StatedRule(
        "R050",
        "quantised checkpoints are refused",
        ("model.quantization", "model.dtype"),
        "A config.json with a quantization_config ends the start; other weights are held in `model.dtype`, or in the "
        "bits of `model.quantization`.",
    ),
    StatedRule(
        "R052",
        "one instance generates",
        ("model.runner",),
        "auto is generate, since every architecture of this build is a text generator.",
    ),
    StatedRule(
        "R056",
        "auto reads tokenizer.json",
        ("model.tokenizer_mode", "model.tokenizer"),
        "slow passes it over and builds from the older vocabulary files; hf hands the folder to transformers.",
    ),
    StatedRule(
        "R072",
        "no local files",
        ("model.allowed_local_media_path",),
        "Requests carry text, so none can name a file of this machine.",
    ),
    StatedRule(
        "R073",
        "no media domains",
        ("model.allowed_media_domains",),
        "Requests carry text, so nothing is fetched from anywhere.",
    ),
    StatedRule("R074", "config.json only", ("model.config_format",), "auto is hf; params.json is not read."),
    StatedRule(
        "R075",
        "native implementations only",
        ("model.model_impl",),
        "auto is native; an architecture that this build lacks is refused with the list of those it has.",
    ),
    StatedRule(
        "R076",
        "a model that needs code of its repository is refused",
        ("model.trust_remote_code",),
        "config.json says so with auto_map; the message names the option and what to do instead.",
    ),
    StatedRule(
        "R077",
        "true is the token of the hub's login",
        ("model.hf_token",),
        "A download then fails where nobody logged in.",
    ),
    StatedRule(
        "R051",
        "auto takes the checkpoint's format",
        ("model.dtype",),
        "bfloat16 stays bfloat16 and float32 stays float32; float16 becomes float32 on a CPU and bfloat16 in Triton's "
        "interpreter. float is float32, half is float16.",
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
