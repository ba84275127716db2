"""Rules about the model, its precision, context and sampling defaults. The format of a rule: ../rule.py."""

from __future__ import annotations

from ....model.quantised import scheme_of
from ....model.rope import SCALINGS
from ...checkpoint.layout import CONSOLIDATED_FORMATS
from ...checkpoint.model_files import is_hub_id
from ...checkpoint.repository_code import COMMIT
from ...exit_codes import EXIT_ENVIRONMENT
from ..import_path import split_import_path
from ..rule import Rule, StatedRule
from ..values import Values

_OF_THE_HUB = ("model.revision", "model.tokenizer_revision", "model.hf_token", "load.download_dir")
_OF_THE_TOKENIZER = ("model.tokenizer", "model.tokenizer_mode", "model.tokenizer_revision")


def _is_local(v: Values) -> bool:
    """Whether none of model, tokenizer and config.json comes from the hub."""
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
        message="`model.logits_processor_pattern` is not a valid regular expression: {pattern_problem}",
        why="The import paths in requests must match it completely; the syntax is Python's.",
        fixes=("write for example `mypackage[.]logits:.+`",),
    ),
    Rule(
        id="R243",
        title="logits processors are import paths",
        fields=("model.logits_processors",),
        is_broken=lambda v: not all(map(split_import_path, v.logits_processors)),
        message="`model.logits_processors` contains a value that is not the import path of a class: "
        "{logits_processors}",
        why="The engine imports the class from this module.",
        fixes=("write each as `package.module:Class`",),
    ),
    Rule(
        id="R055",
        title="a chat template needs a tokenizer",
        fields=("model.skip_tokenizer_init", "server.chat_template"),
        is_broken=lambda v: v.skip_tokenizer_init and v.chat_template is not None,
        message="without a tokenizer there is no chat, so `server.chat_template` has no effect",
        why="With skip_tokenizer_init requests contain token ids only.",
        fixes=("remove `server.chat_template`, or `model.skip_tokenizer_init`",),
    ),
    Rule(
        id="R057",
        title="max_logprobs -1 removes the limit",
        fields=("model.max_logprobs",),
        severity="warning",
        is_broken=lambda v: v.max_logprobs == -1,
        message="`model.max_logprobs` is -1: one request can ask for the whole vocabulary at every position",
        why="The memory for such an answer is its length times the size of the vocabulary.",
        fixes=("write the largest number that your clients need",),
    ),
    Rule(
        id="R062",
        title="disable_sliding_window needs a window",
        fields=("model.disable_sliding_window",),
        severity="warning",
        needs_model=True,
        is_broken=lambda v: v.disable_sliding_window and v.window is None,
        message="`model.disable_sliding_window` has no effect: the model has no sliding window",
        why="The option lets every layer attend to the whole sequence and limits the context to the window.",
        fixes=("remove the option",),
    ),
    Rule(
        id="R065",
        title="rope_theta is used with rope_scaling",
        fields=("model.rope_theta", "model.rope_scaling"),
        severity="warning",
        is_broken=lambda v: v.is_written("model.rope_theta") and not v.rope_scaling,
        message="`model.rope_theta` is {rope_theta} and there is no `model.rope_scaling`",
        why="Another base alone rotates all positions in a way that the model was not trained with.",
        fixes=("add the scaling that the base belongs to, or remove `rope_theta`",),
    ),
    Rule(
        id="R281",
        title="rotary positions are configured once",
        fields=("model.rope_theta", "model.rope_scaling", "model.hf_overrides"),
        is_broken=lambda v: bool(v.rope_problem),
        message="`model.hf_overrides` contradicts the rope options: {rope_problem}",
        why="It is not clear which one applies.",
        fixes=("keep one of the two",),
    ),
    Rule(
        id="R282",
        title="the type of a rope scaling is supported",
        fields=("model.rope_scaling",),
        is_broken=lambda v: bool(v.rope_scaling) and v.rope_kind not in ("default", *SCALINGS),
        message="`model.rope_scaling` must have a `rope_type`: one of {rope_kinds}",
        why="Without a known type the other parameters would have no effect.",
        fixes=("add `rope_type`; `engine explain model.rope_scaling` shows an example",),
    ),
    Rule(
        id="R330",
        title="weights have the format of their configuration file",
        fields=("model.config_format", "load.load_format"),
        is_broken=lambda v: (
            (v.config_format == "hf" and v.load_format == "mistral")
            or (v.config_format == "mistral" and v.load_format not in (*CONSOLIDATED_FORMATS, "sharded_state"))
            or (v.config_format == "gguf" and v.load_format not in ("auto", "gguf", "dummy", "sharded_state"))
            or (v.config_format in ("hf", "mistral") and v.load_format == "gguf")
        ),
        message="`load.load_format` is {load_format}, and `model.config_format` is {config_format}",
        why=(
            "params.json describes consolidated safetensors, a GGUF file itself, and config.json all other files; a "
            "sharded state has what described its original."
        ),
        fixes=("remove one of the two: `auto` takes what fits",),
    ),
    Rule(
        id="R202",
        title="the KV cache can hold the longest sequence",
        fields=("model.max_model_len", "cache.kv_cache_memory_bytes", "cache.num_gpu_blocks_override"),
        needs_model=True,
        is_broken=lambda v: v.is_kv_written and 0 < v.max_cached_len < v.max_model_len,
        message=(
            "one sequence of {max_model_len} tokens needs {one_sequence} of KV cache; it has {kv_cache} "
            "for at most {max_cached_len} tokens"
        ),
        why="Otherwise a request within max_model_len would be accepted and could never finish.",
        fixes=(
            "set `model.max_model_len` to at most {max_cached_len}, or to auto",
            "or give the KV cache at least {one_sequence_exact} with `cache.kv_cache_memory_bytes`",
        ),
    ),
    Rule(
        id="R204",
        title="the weights leave memory for a KV cache",
        fields=("model.model", "model.dtype", "cache.gpu_memory_utilization"),
        needs_model=True,
        about_machine=True,
        exit_code=EXIT_ENVIRONMENT,
        is_broken=lambda v: not v.is_kv_written and v.num_kv_blocks == 0,
        message=(
            "the weights need {weights} in {dtype}{others}; `cache.gpu_memory_utilization` {gpu_memory_utilization} of "
            "the {memory} is {budget}"
        ),
        why="Weights and KV cache share this memory, and without a KV cache nothing can run.",
        fixes=("{smaller_weights}", "{fewer_states}", "choose a smaller model, or free memory on this machine"),
    ),
    Rule(
        id="R205",
        title="max_model_len is within the model's limit",
        fields=("model.max_model_len",),
        needs_model=True,
        is_broken=lambda v: v.max_model_len > v.model_limit,
        message="`model.max_model_len` is {max_model_len}; the model supports {model_limit} tokens",
        why="Positions beyond the model's limit give meaningless answers without an error.",
        fixes=(
            "set `model.max_model_len` to at most {model_limit}, or to auto",
            "or, if the model supports more with a rope scaling, raise `hf_overrides.max_position_embeddings`",
        ),
    ),
    Rule(
        id="R206",
        title="the memory of this machine can hold the longest sequence",
        fields=("model.max_model_len", "cache.gpu_memory_utilization"),
        needs_model=True,
        about_machine=True,
        is_broken=lambda v: v.num_kv_blocks > 0 and v.max_cached_len < v.max_model_len and not v.is_kv_written,
        message=(
            "one sequence of {max_model_len} tokens needs {one_sequence} of KV cache; after the weights ({weights}"
            "{others}) this machine's budget of {budget} leaves {kv_cache}, for at most {max_cached_len} tokens"
        ),
        why="Otherwise a request within max_model_len would be accepted and could never finish.",
        fixes=(
            "set `model.max_model_len` to at most {max_cached_len}, or to auto",
            "{smaller_weights}",
            "{fewer_states}",
            "or raise `cache.gpu_memory_utilization` or free memory on this machine",
        ),
    ),
    Rule(
        id="R207",
        title="a sequence has room for a prompt and an answer",
        fields=("model.max_model_len",),
        is_broken=lambda v: v.max_model_len < 2 and v.is_written("model.max_model_len"),
        message="`model.max_model_len` is {max_model_len}; a prompt and one token of an answer need 2",
        why="No request could be served.",
        fixes=("set `model.max_model_len` to at least 2, or to auto",),
    ),
    Rule(
        id="R209",
        title="bfloat16 is slow on a CPU without bfloat16 instructions",
        fields=("model.dtype",),
        severity="warning",
        about_machine=True,
        is_broken=lambda v: (
            v.device == "cpu" and v.dtype == "bfloat16" and not v.machine.has_bfloat16 and v.is_written("model.dtype")
        ),
        message="this CPU has no bfloat16 instructions: bfloat16 saves memory and is slower than float32",
        why="Without them every value is converted to float32 before it is used.",
        fixes=("write `dtype: float32` if there is enough memory",),
    ),
    Rule(
        id="R230",
        title="Triton's interpreter does not support bfloat16",
        fields=("model.dtype", "cache.kv_cache_dtype", "device.device"),
        about_machine=True,
        is_broken=lambda v: v.decisions.is_interpreted and "bfloat16" in (v.dtype, v.kv_cache_dtype),
        message="Triton's interpreter, which replaces a GPU here, computes bfloat16 incorrectly",
        why="It interprets the bits of a bfloat16 value as an integer.",
        fixes=("write `dtype: float32` or `float16`, or auto",),
    ),
    Rule(
        id="R231",
        title="float16 is for GPUs",
        fields=("model.dtype", "cache.kv_cache_dtype", "device.device"),
        about_machine=True,  # on which `device: auto` depends
        is_broken=lambda v: v.device == "cpu" and "float16" in (v.dtype, v.kv_cache_dtype),
        message="float16 runs on GPUs only, and `device.device` is {device}",
        why="The CPU kernels compute in bfloat16 (the same memory, a wider range) and in float32.",
        fixes=("write bfloat16 or float32, or auto",),
    ),
    Rule(
        id="R232",
        title="quantised weights are for CPUs",
        fields=("model.quantization", "device.device"),
        is_broken=lambda v: v.device == "cuda" and scheme_of(v.quantization) is not None,
        message="`model.quantization` {quantization} has kernels for CPUs only, and `device.device` is cuda",
        why="The quantised kernels of this build use instructions of CPUs.",
        fixes=("remove `model.quantization`, or write `device: cpu`",),
    ),
    Rule(
        id="R285",
        title="activations are quantised for quantised weights",
        fields=("model.activation_quantization", "model.quantization"),
        is_broken=lambda v: v.activation_quantization == "int8" and scheme_of(v.quantization) is None,
        message="`model.activation_quantization` {activation_quantization} needs `model.quantization` int8 or int4",
        why="Both factors of a product of integers are integers.",
        fixes=("add `quantization: int8` or `int4`, or remove `activation_quantization`",),
    ),
    Rule(
        id="R298",
        title="models of the transformers library run on CPUs",
        fields=("model.model_impl", "device.device"),
        needs_model=True,
        about_machine=True,  # on which `device: auto` depends
        is_broken=lambda v: v.is_through_transformers and v.device == "cuda",
        message="this model runs through the transformers library, which this build supports on CPUs only",
        why="The attention function, the KV cache and the linear layers that its modules are given are those of a CPU.",
        fixes=("write `device: cpu`",),
    ),
    Rule(
        id="R299",
        title="models of the transformers library are not batch-invariant",
        fields=("model.batch_invariant", "model.model_impl"),
        needs_model=True,
        is_broken=lambda v: v.is_through_transformers and v.batch_invariant,
        message="`model.batch_invariant` does not hold for a model that runs through the transformers library",
        why="Its modules use operations of torch whose order of sums depends on the number of rows.",
        fixes=("remove `model.batch_invariant`",),
    ),
    Rule(
        id="R300",
        title="architectures through the transformers library are tested",
        fields=("model.model_impl",),
        severity="warning",
        needs_model=True,
        is_broken=lambda v: (
            v.is_through_transformers and (v.has_repository_code or not v.is_tested_through_transformers)
        ),
        message="this build is not tested with `{architecture}` on the modules of the transformers library",
        why="Its answers may differ from those of the library. `auto` chooses tested architectures only.",
        fixes=("compare some answers with those of transformers",),
    ),
    Rule(
        id="R301",
        title="code of a repository runs on the modules of transformers",
        fields=("model.trust_remote_code", "model.model_impl"),
        is_broken=lambda v: v.trust_remote_code and v.model_impl != "transformers",
        message="`model.trust_remote_code` needs `model.model_impl: transformers`, and `model_impl` is {model_impl}",
        why="Code from a repository runs only where both options are written, never because of auto.",
        fixes=("write `model_impl: transformers`, or remove `trust_remote_code`",),
    ),
    Rule(
        id="R302",
        title="code from the hub is pinned",
        fields=("model.trust_remote_code", "model.code_revision", "model.model"),
        is_broken=lambda v: (
            v.trust_remote_code and is_hub_id(v.located("model.model")) and not COMMIT.fullmatch(v.code_revision or "")
        ),
        message="`model.trust_remote_code` runs code of `{model}`, and `model.code_revision` is no commit",
        why="A branch or tag can change, and the next start would run other code with all rights of this process.",
        fixes=(
            "write the commit whose code you have read, 40 hexadecimal digits, as `model.code_revision`",
            "or download the repository and name its directory as `model.model`",
        ),
    ),
    Rule(
        id="R303",
        title="a revision of code needs code from the hub",
        fields=("model.code_revision", "model.trust_remote_code", "model.model"),
        severity="warning",
        is_broken=lambda v: (
            v.code_revision is not None and not (v.trust_remote_code and is_hub_id(v.located("model.model")))
        ),
        message="`model.code_revision` has no effect: no code from the hub is run",
        why="It selects the commit whose code `model.trust_remote_code` allows.",
        fixes=("remove it",),
    ),
    Rule(
        id="R304",
        title="trust_remote_code needs a model with code",
        fields=("model.trust_remote_code",),
        severity="warning",
        needs_model=True,
        is_broken=lambda v: v.trust_remote_code and not v.has_repository_code,
        message="`model.trust_remote_code` has no effect: config.json names no code (`auto_map`)",
        why="The option allows the code that config.json names as the model's class.",
        fixes=("remove it",),
    ),
    Rule(
        id="R233",
        title="batch_invariant is slow on a GPU",
        fields=("model.batch_invariant", "device.device"),
        severity="warning",
        is_broken=lambda v: v.device == "cuda" and v.batch_invariant,
        message="`model.batch_invariant` on a GPU computes one row at a time in plain PyTorch: many times slower",
        why="The kernels of a GPU divide their work depending on the batch, and without them no graph is captured.",
        fixes=("remove it if answers need not be repeatable, or write `device: cpu`",),
    ),
    Rule(
        id="R236",
        title="logits processors make a GPU wait",
        fields=("model.logits_processors", "device.device"),
        severity="warning",
        is_broken=lambda v: v.device == "cuda" and bool(v.logits_processors),
        message="with `model.logits_processors` the GPU waits for the CPU in every step, and no graph is replayed",
        why="They run on the CPU and change the logits of a step before a token is sampled, and the next step needs "
        "that "
        "token.",
        fixes=("let only the requests that need one select it: `model.logits_processor_pattern`",),
    ),
    Rule(
        id="R284",
        title="settings belong to a logits processor that is installed",
        fields=("model.logits_processor_settings", "model.logits_processors"),
        is_broken=lambda v: not {*v.logits_processor_settings} <= {*v.logits_processors},
        message="`model.logits_processor_settings` has a path that is not in `model.logits_processors`",
        why="The settings would have no effect. Both must write the path in the same way.",
        fixes=("add the path to `model.logits_processors`, or correct it",),
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
        why="They select which files are downloaded, with which permissions, and where they are stored.",
        fixes=("remove them",),
    ),
    Rule(
        id="R217",
        title="tokenizer options need a tokenizer",
        fields=(*_OF_THE_TOKENIZER, "model.skip_tokenizer_init"),
        severity="warning",
        is_broken=lambda v: v.skip_tokenizer_init and any(v.is_written(path) for path in _OF_THE_TOKENIZER),
        message=(
            "`model.tokenizer`, `tokenizer_mode` and `tokenizer_revision` have no effect with "
            "`model.skip_tokenizer_init`"
        ),
        why="Requests contain token ids, so no tokenizer is loaded.",
        fixes=("remove one of the two",),
    ),
    Rule(
        id="R218",
        title="hf_overrides have an effect",
        fields=("model.hf_overrides",),
        severity="warning",
        needs_model=True,
        is_broken=lambda v: bool(v.unused_overrides),
        message="`model.hf_overrides`: {unused_overrides} is not used, and is not a key of config.json",
        why="A misspelt key would silently have no effect.",
        fixes=("use a key of the model's config.json",),
    ),
    Rule(
        id="R394",
        title="an engine that sleeps is a process of the one API process",
        fields=("model.enable_sleep_mode", "server.disable_frontend_multiprocessing", "server.api_server_count"),
        is_broken=lambda v: v.enable_sleep_mode and (v.disable_frontend_multiprocessing or v.api_server_count > 1),
        message="`model.enable_sleep_mode` needs an engine process, and one API process",
        why="Sleep of level 2 ends the engine process, and the API process starts it again.",
        fixes=("remove `disable_frontend_multiprocessing` or `api_server_count`, or `enable_sleep_mode`",),
    ),
    Rule(
        id="R395",
        title="a time to sleep needs sleep mode",
        fields=("model.sleep_after", "model.enable_sleep_mode"),
        is_broken=lambda v: v.sleep_after is not None and not v.enable_sleep_mode,
        message="`model.sleep_after` needs `model.enable_sleep_mode`",
        why="The engine gives its memory back only if it is allowed to.",
        fixes=("set `enable_sleep_mode: true`, or remove `sleep_after`",),
    ),
    Rule(
        id="R396",
        title="the level of sleep needs a time",
        fields=("model.sleep_level", "model.sleep_after"),
        severity="warning",
        is_broken=lambda v: v.is_written("model.sleep_level") and v.sleep_after is None,
        message="`model.sleep_level` has no effect without `model.sleep_after`",
        why="POST /sleep names the level itself.",
        fixes=("set `sleep_after`, or remove `sleep_level`",),
    ),
)

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R058",
        "raw values are taken before processing, processed ones after",
        ("model.logprobs_mode",),
        "Processed ones come after processors, bias, penalties, temperature, min_p, top_k and top_p; logits are not "
        "normalised.",
    ),
    StatedRule(
        "R070",
        "without a pattern no request can select a processor",
        ("model.logits_processor_pattern",),
        "Such a request is answered 400, and nothing is imported.",
    ),
    StatedRule(
        "R001",
        "numbers may have a unit",
        ("model.max_model_len", "scheduler.max_num_batched_tokens", "scheduler.max_queued_tokens"),
        "k, m, g, t are powers of 1000 and may follow a fraction (25.6k); K, M, G, T are powers of 1024.",
    ),
    StatedRule(
        "R002",
        "binary units take whole numbers",
        ("model.max_model_len", "scheduler.max_num_batched_tokens", "scheduler.max_queued_tokens"),
        "1.5K is refused, and the message offers 1.5k; a fraction of 1024 is more often a mistake than intended.",
    ),
    StatedRule(
        "R003",
        "auto is the largest context that fits",
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
        "None and an empty text unset an option",
        (
            *("model.tokenizer", "model.revision", "model.tokenizer_revision", "model.hf_config_path"),
            *("load.download_dir", "model.generation_config", "load.model_loader_extra_config"),
        ),
        "On the command line and in variables: weaker layers are then ignored and the default applies.",
    ),
    StatedRule(
        "R043",
        "the name in the API is the model's name by default",
        ("model.served_model_name", "model.model"),
        "With several names each is accepted, and the first is shown in responses and metrics.",
    ),
    StatedRule(
        "R044", "the tokenizer is the model's own", ("model.tokenizer", "model.model"), "Unless another one is given."
    ),
    StatedRule(
        "R045",
        "config.json is the model's own",
        ("model.hf_config_path", "model.model"),
        "Unless another directory or hub id is given.",
    ),
    StatedRule(
        "R050",
        "quantised checkpoints keep their codes",
        ("model.quantization", "model.dtype"),
        "Matrices that a checkpoint stores quantised stay in its own codes and scales where the kernels of the device "
        "multiply these; experts, and everything with torch alone, are held in `model.dtype`. "
        "`model.quantization` quantises them again instead.",
    ),
    StatedRule(
        "R052",
        "the runner generates text",
        ("model.runner",),
        "auto is generate, because every architecture of this build generates text.",
    ),
    StatedRule(
        "R056",
        "auto reads tokenizer.json",
        ("model.tokenizer_mode", "model.tokenizer"),
        "Without one it reads tekken.json, as mistral always does; slow builds from the older vocabulary files; hf "
        "loads the folder with transformers.",
    ),
    StatedRule(
        "R072",
        "requests cannot name local files",
        ("model.allowed_local_media_path",),
        "Requests contain text only.",
    ),
    StatedRule(
        "R073",
        "requests cannot name media domains",
        ("model.allowed_media_domains",),
        "Requests contain text only, so nothing is fetched.",
    ),
    StatedRule(
        "R074",
        "auto reads config.json",
        ("model.config_format",),
        "Without one, or with `load.load_format: mistral`, it reads params.json. A GGUF file describes itself.",
    ),
    StatedRule(
        "R075",
        "auto prefers the native implementation",
        ("model.model_impl",),
        "An architecture that this build lacks runs through the transformers library if this build is tested with it, "
        "and is refused otherwise; transformers runs any other one too, with a warning.",
    ),
    StatedRule(
        "R076",
        "a model that needs code of its repository is refused",
        ("model.trust_remote_code",),
        "config.json contains auto_map then, and the message names the option. Code named by a part of config.json or "
        "by tokenizer_config.json is never run; the message shows an alternative.",
    ),
    StatedRule(
        "R077",
        "true is the token of the hub login",
        ("model.hf_token",),
        "A download then fails without a login.",
    ),
    StatedRule(
        "R051",
        "auto is the checkpoint's format",
        ("model.dtype",),
        "bfloat16 stays bfloat16 and float32 stays float32; float16 becomes float32 on a CPU, or bfloat16 if the "
        "weights are quantised. Triton's interpreter computes bfloat16 in float32. float is float32, half is float16.",
    ),
    StatedRule(
        "R054",
        "without a tokenizer requests contain token ids",
        ("model.skip_tokenizer_init",),
        "Text prompts, chat and stop strings are refused with 400, and answers hold token ids.",
    ),
    StatedRule(
        "R066",
        "the context limit counts prompt and answer",
        ("model.max_model_len",),
        "A request is refused if its prompt leaves no room for an answer, and ends at the limit otherwise.",
    ),
    StatedRule(
        "R067",
        "overrides replace values of the model's file",
        ("model.generation_config", "model.override_generation_config"),
        "With auto they override generation_config.json; with none only they apply.",
    ),
    StatedRule(
        "R068",
        "max_new_tokens of the file is the default of max_tokens",
        ("model.generation_config",),
        "It applies to requests without max_tokens only.",
    ),
    StatedRule("R078", "one seed for everything", ("model.seed",), "Every part of the engine uses the same seed."),
)
