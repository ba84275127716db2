"""Rules about the model: its files, precision and sampling. The format of a rule: ../rule.py."""

from __future__ import annotations

import re

from ....model.quantised import scheme_of
from ...checkpoint.layout import CONSOLIDATED_FORMATS
from ...checkpoint.model_files import is_hub_id
from ...schema.pooler_config import NOT_DONE, RENAMED
from ..import_path import split_import_path
from ..rule import Rule
from ..values import Values

_OF_THE_HUB = ("model.revision", "model.tokenizer_revision", "model.hf_token", "load.download_dir")
_OF_THE_TOKENIZER = ("model.tokenizer", "model.tokenizer_mode", "model.tokenizer_revision")


def _is_local(v: Values) -> bool:
    """Whether none of model, tokenizer and config.json comes from the hub."""
    model = v.config.model
    named = ["model.model"]
    if model.tokenizer != "auto" and not model.skip_tokenizer_init:
        named.append("model.tokenizer")
    if model.hf_config_path != "auto":
        named.append("model.hf_config_path")
    return not any(is_hub_id(v.located(path)) for path in named)


def _pattern_problem(v: Values) -> str:
    """The error in logits_processor_pattern; empty if there is none."""
    try:
        re.compile(v.model.logits_processor_pattern or "")
    except re.error as error:
        return f"{error.msg} at character {(error.pos or 0) + 1}"
    return ""


def _has_other_weights(v: Values) -> bool:
    """Whether the weights have a format that the configuration file cannot describe."""
    weights = v.load.load_format
    match v.model.config_format:
        case "hf":
            return weights in ("mistral", "gguf")
        case "mistral":
            return weights == "gguf" or weights not in (*CONSOLIDATED_FORMATS, "sharded_state")
        case "gguf":
            return weights not in ("auto", "gguf", "dummy", "sharded_state")
    return False


def _unused_overrides(v: Values) -> str:
    names = v.files.unused_overrides if v.files else ()
    return ", ".join(f"`{name}`" for name in names)


def _renamed_pooler_keys(v: Values) -> str:
    return ", ".join(f"`{old}` is `{RENAMED[old]}` now" for old in v.model.pooler_config if old in RENAMED)


def _undone_pooler_keys(v: Values) -> str:
    return "; ".join(f"`{key}`: {NOT_DONE[key]}" for key in v.model.pooler_config if key in NOT_DONE)


def _contradicted_pooling(v: Values) -> str:
    """The keys of `pooler_config` that say different things; empty if none do."""
    written = v.model.pooler_config
    kind = written.get("pooling_type")
    other = {"CLS": "seq", "LAST": "seq", "MEAN": "seq", "ALL": "tok", "STEP": "tok"}.get(str(kind))
    key = f"{other}_pooling_type"
    return f"`pooling_type` is {kind}, `{key}` is {written[key]}" if written.get(key, kind) != kind else ""


RULES: tuple[Rule, ...] = (
    Rule(
        id="R542",
        title="keys of pooler_config have an effect",
        fields=("model.pooler_config",),
        is_broken=_undone_pooler_keys,
        message="`model.pooler_config` has keys that this build does not support: {problem}",
        why="A key without an effect would be a promise that is not kept.",
        fixes=("remove them",),
    ),
    Rule(
        id="R543",
        title="keys of pooler_config have their newer names",
        fields=("model.pooler_config",),
        is_broken=_renamed_pooler_keys,
        message="`model.pooler_config` has older names: {problem}",
        why="`use_activation` decides about normalisation, softmax and sigmoid, which had a name each.",
        fixes=("write the newer name",),
    ),
    Rule(
        id="R544",
        title="pooler_config says one kind of pooling",
        fields=("model.pooler_config",),
        is_broken=_contradicted_pooling,
        message="`model.pooler_config` contradicts itself: {problem}",
        why="`pooling_type` is one of the two others, by its value.",
        fixes=("keep one of the two",),
    ),
    Rule(
        id="R242",
        title="logits_processor_pattern is a regular expression",
        fields=("model.logits_processor_pattern",),
        is_broken=_pattern_problem,
        message="`model.logits_processor_pattern` is not a valid regular expression: {problem}",
        why="The import paths in requests must match it completely; the syntax is Python's.",
        fixes=("write for example `mypackage[.]logits:.+`",),
    ),
    Rule(
        id="R243",
        title="logits processors are import paths",
        fields=("model.logits_processors",),
        is_broken=lambda v: not all(map(split_import_path, v.model.logits_processors)),
        message="`model.logits_processors` contains a value that is not the import path of a class: "
        "{logits_processors}",
        why="The engine imports the class from this module.",
        fixes=("write each as `package.module:Class`",),
    ),
    Rule(
        id="R055",
        title="a chat template needs a tokenizer",
        fields=("model.skip_tokenizer_init", "server.chat_template"),
        is_broken=lambda v: v.model.skip_tokenizer_init and v.server.chat_template is not None,
        message="without a tokenizer there is no chat, so `server.chat_template` has no effect",
        why="With skip_tokenizer_init requests contain token ids only.",
        fixes=("remove `server.chat_template`, or `model.skip_tokenizer_init`",),
    ),
    Rule(
        id="R057",
        title="max_logprobs -1 removes the limit",
        fields=("model.max_logprobs",),
        severity="warning",
        is_broken=lambda v: v.model.max_logprobs == -1,
        message="`model.max_logprobs` is -1: one request can ask for the whole vocabulary at every position",
        why="The memory for such an answer is its length times the size of the vocabulary.",
        fixes=("write the largest number that your clients need",),
    ),
    Rule(
        id="R330",
        title="weights have the format of their configuration file",
        fields=("model.config_format", "load.load_format"),
        is_broken=_has_other_weights,
        message="`load.load_format` is {load_format}, and `model.config_format` is {config_format}",
        why=(
            "params.json describes consolidated safetensors, a GGUF file itself, and config.json all other files; a "
            "sharded state has what described its original."
        ),
        fixes=("remove one of the two: `auto` takes what fits",),
    ),
    Rule(
        id="R209",
        title="bfloat16 is slow on a CPU without bfloat16 instructions",
        fields=("model.dtype",),
        severity="warning",
        about_machine=True,
        is_broken=lambda v: (
            v.device.device == "cpu"
            and v.model.dtype == "bfloat16"
            and not v.machine.has_bfloat16
            and v.is_written("model.dtype")
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
        is_broken=lambda v: (
            v.decisions.is_interpreted and "bfloat16" in (v.config.model.dtype, v.config.cache.kv_cache_dtype)
        ),
        message="Triton's interpreter, which replaces a GPU here, computes bfloat16 incorrectly",
        why="It interprets the bits of a bfloat16 value as an integer.",
        fixes=("write `dtype: float32` or `float16`, or auto",),
    ),
    Rule(
        id="R231",
        title="float16 is for GPUs",
        fields=("model.dtype", "cache.kv_cache_dtype", "device.device"),
        severity="warning",
        about_machine=True,  # on which `device: auto` depends
        is_broken=lambda v: (
            v.device.device == "cpu" and "float16" in (v.config.model.dtype, v.config.cache.kv_cache_dtype)
        ),
        message="float16 runs on GPUs only, and `device.device` is {device}: what `auto` chooses is used instead",
        why="The CPU kernels compute in bfloat16 (the same memory, a wider range) and in float32.",
        fixes=("write bfloat16 or float32, or auto",),
    ),
    Rule(
        id="R232",
        title="quantised weights are for CPUs",
        fields=("model.quantization", "device.device"),
        is_broken=lambda v: v.device.device == "cuda" and scheme_of(v.model.quantization) is not None,
        message="`model.quantization` {quantization} has kernels for CPUs only, and `device.device` is cuda",
        why="The quantised kernels of this build use instructions of CPUs.",
        fixes=("remove `model.quantization`, or write `device: cpu`",),
    ),
    Rule(
        id="R285",
        title="activations are quantised for quantised weights",
        fields=("model.activation_quantization", "model.quantization"),
        is_broken=lambda v: v.model.activation_quantization == "int8" and scheme_of(v.model.quantization) is None,
        message="`model.activation_quantization` {activation_quantization} needs `model.quantization` int8 or int4",
        why="Both factors of a product of integers are integers.",
        fixes=("add `quantization: int8` or `int4`, or remove `activation_quantization`",),
    ),
    Rule(
        id="R233",
        title="batch_invariant is slow on a GPU",
        fields=("model.batch_invariant", "device.device"),
        severity="warning",
        is_broken=lambda v: v.device.device == "cuda" and v.model.batch_invariant,
        message="`model.batch_invariant` on a GPU computes one row at a time in plain PyTorch: many times slower",
        why="The kernels of a GPU divide their work depending on the batch, and without them no graph is captured.",
        fixes=("remove it if answers need not be repeatable, or write `device: cpu`",),
    ),
    Rule(
        id="R236",
        title="logits processors make a GPU wait",
        fields=("model.logits_processors", "device.device"),
        severity="warning",
        is_broken=lambda v: v.device.device == "cuda" and bool(v.model.logits_processors),
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
        is_broken=lambda v: not {*v.model.logits_processor_settings} <= {*v.model.logits_processors},
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
        is_broken=lambda v: v.model.skip_tokenizer_init and any(v.is_written(path) for path in _OF_THE_TOKENIZER),
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
        is_broken=_unused_overrides,
        message="`model.hf_overrides`: {problem} is not used, and is not a key of config.json",
        why="A misspelt key would silently have no effect.",
        fixes=("use a key of the model's config.json",),
    ),
    Rule(
        id="R394",
        title="an engine that sleeps is a process of the one API process",
        fields=("model.enable_sleep_mode", "server.disable_frontend_multiprocessing", "server.api_server_count"),
        is_broken=lambda v: (
            v.model.enable_sleep_mode and (v.server.disable_frontend_multiprocessing or v.server.api_server_count > 1)
        ),
        message="`model.enable_sleep_mode` needs an engine process, and one API process",
        why="Sleep of level 2 ends the engine process, and the API process starts it again.",
        fixes=("remove `disable_frontend_multiprocessing` or `api_server_count`, or `enable_sleep_mode`",),
    ),
    Rule(
        id="R395",
        title="a time to sleep needs sleep mode",
        fields=("model.sleep_after", "model.enable_sleep_mode"),
        is_broken=lambda v: v.model.sleep_after is not None and not v.model.enable_sleep_mode,
        message="`model.sleep_after` needs `model.enable_sleep_mode`",
        why="The engine gives its memory back only if it is allowed to.",
        fixes=("set `enable_sleep_mode: true`, or remove `sleep_after`",),
    ),
    Rule(
        id="R396",
        title="the level of sleep needs a time",
        fields=("model.sleep_level", "model.sleep_after"),
        severity="warning",
        is_broken=lambda v: v.is_written("model.sleep_level") and v.model.sleep_after is None,
        message="`model.sleep_level` has no effect without `model.sleep_after`",
        why="POST /sleep names the level itself.",
        fixes=("set `sleep_after`, or remove `sleep_level`",),
    ),
)
