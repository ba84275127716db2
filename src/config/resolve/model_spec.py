"""ModelSpec from config.json, generation_config.json and the headers of its weight files.

Defaults for keys that config.json leaves out are those of the transformers library, per family. Both spellings of its
releases are read: `dtype` and `torch_dtype`, `rope_parameters` and `rope_theta` with `rope_scaling`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.layout import WeightFiles, read_weight_files
from ..checkpoint.model_files import is_hub_id, locate, read_json
from ..checkpoint.settings import settings_problem
from ..errors import ModelFilesError
from . import sampling
from .resolved import ModelSpec, RopeSpec

if TYPE_CHECKING:
    from ..deployment import Deployment

_READ_KEYS = {  # of config.json, under any spelling
    *("architectures", "attention_bias", "bos_token_id", "dtype", "eos_token_id", "head_dim", "hidden_act"),
    *("hidden_size", "intermediate_size", "layer_types", "max_position_embeddings", "max_window_layers", "mlp_bias"),
    *("num_attention_heads", "num_hidden_layers", "num_key_value_heads", "original_max_position_embeddings"),
    *("pad_token_id", "partial_rotary_factor", "quantization_config", "rms_norm_eps", "rope_parameters"),
    *("rope_scaling", "rope_theta", "sliding_window", "tie_word_embeddings", "torch_dtype", "use_sliding_window"),
    "vocab_size",
}
_ANY_MODEL_FILE = ("*.json", "*.safetensors", "*.bin", "*.pt", "*.pth")
TOKENIZER_JSON = "tokenizer.json"
OLDER_VOCABULARIES = ("vocab.json", "tokenizer.model", "spiece.model", "vocab.txt")
ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
_SAFETENSORS_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: the defaults of its config class, and which parts it has whatever config.json says."""

    model_type: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    qk_norm: bool = False
    attention_bias: bool | None = None  # None: config.json decides
    attention_out_bias: bool | None = None
    mlp_bias: bool | None = False
    window_by_layer: bool = False  # use_sliding_window, max_window_layers and layer_types count


_COMMON = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
_QWEN = _COMMON | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
FAMILIES = {
    "LlamaForCausalLM": Family(
        "llama",
        _COMMON
        | {
            "vocab_size": 32000,
            "intermediate_size": 11008,
            "max_position_embeddings": 2048,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        mlp_bias=None,
    ),
    "MistralForCausalLM": Family(
        "mistral",
        _COMMON
        | {
            "vocab_size": 32000,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        attention_bias=False,
        attention_out_bias=False,
    ),
    "Qwen2ForCausalLM": Family("qwen2", _QWEN, attention_bias=True, attention_out_bias=False, window_by_layer=True),
    "Qwen3ForCausalLM": Family("qwen3", _QWEN | {"head_dim": 128}, qk_norm=True, window_by_layer=True),
}


def read_spec(deployment: Deployment) -> ModelSpec:
    """Everything known about the model without loading it.

    Raises ModelFilesError (exit code 3), naming file and fault; ModelNotLocal if it must be downloaded first.
    """
    config, cache = deployment.config, hub_cache(deployment)
    folder = model_folder(deployment, cache)
    path = config_folder(deployment, folder, cache) / "config.json"
    written = read_json(path)
    merged = _apply_overrides(written, config.model.hf_overrides)
    own = dict(merged)
    merged = _apply_rope(merged, config.model.rope_scaling, config.model.rope_theta)
    reader = _Reader(path, merged)
    name, family = _family(reader, merged)
    reader.defaults = family.defaults
    shape = _shape(reader, family)
    max_context = _max_context(shape, config.model.rope_scaling, config.model.disable_sliding_window)
    if config.model.disable_sliding_window:
        shape["sliding_window_layers"] = (False,) * shape["num_layers"]
    weights, counts = _weights(folder, deployment, tied=shape["tie_word_embeddings"])
    rope = _rope(reader, merged)
    return ModelSpec(
        model_path=str(folder),
        architecture=name,
        model_type=family.model_type,
        **shape,
        rope=rope,
        max_context=max_context,
        checkpoint_dtype=_checkpoint_dtype(reader, folder, counts),
        num_parameters=sum(counts.values()) if weights else _count_parameters(shape),
        eos_token_ids=_eos_ids(reader, folder, shape["vocab_size"]),
        bos_token_id=reader.optional_int("bos_token_id"),
        pad_token_id=reader.optional_int("pad_token_id"),
        sampling_defaults=_sampling_defaults(folder, deployment),
        tokenizer_path=_tokenizer_path(deployment, folder),
        weight_files=weights.names if weights else (),
        weight_format=weights.format if weights else "dummy",
        config_path=str(path.parent),
        own_rope_theta=_rope(reader, own).theta,
        unused_overrides=tuple(key for key in config.model.hf_overrides if key not in {*written, *_READ_KEYS}),
    )


def hub_cache(deployment: Deployment) -> str | None:
    """Folder of downloaded models; None for the hub's own."""
    return deployment.located("load.download_dir") if deployment.load.download_dir is not None else None


def model_folder(deployment: Deployment, cache: str | None) -> Path:
    """The model's directory; without a config.json of its own where `model.hf_config_path` names another."""
    wanted = ("config.json",) if deployment.model.hf_config_path == "auto" else _ANY_MODEL_FILE
    return locate(deployment.located("model.model"), deployment.model.revision, cache, *wanted)


def config_folder(deployment: Deployment, folder: Path, cache: str | None) -> Path:
    """The directory whose config.json counts."""
    model = deployment.model
    if model.hf_config_path == "auto":
        return folder
    return locate(deployment.located("model.hf_config_path"), own_revision(deployment, model.hf_config_path), cache)


def own_revision(deployment: Deployment, name: str) -> str | None:
    """`revision` belongs to the model's repository; another repository has its own main branch."""
    return deployment.model.revision if name == deployment.model.model else None


def tokenizer_revision(deployment: Deployment) -> str | None:
    model = deployment.model
    name = model.model if model.tokenizer == "auto" else model.tokenizer
    return model.tokenizer_revision or own_revision(deployment, name)


def tokenizer_source(deployment: Deployment) -> str | None:
    """Name of the repository or directory that a tokenizer is looked for in; None if the model's directory has it."""
    model = deployment.model
    if model.skip_tokenizer_init:
        return None
    if model.tokenizer != "auto":
        return deployment.located("model.tokenizer")
    name = deployment.located("model.model")
    return name if model.tokenizer_revision is not None and is_hub_id(name) else None


class _Reader:
    """config.json with the family's defaults; complains with the file's name and the key."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self.values = values
        self.defaults: Mapping[str, Any] = {}

    def error(self, message: str, code: str = "M306") -> ModelFilesError:
        return ModelFilesError(f"{self.path}: {message}", code=code)

    def get(self, key: str) -> Any:
        """As written - a written null too - else the default, else None."""
        return self.values[key] if key in self.values else self.defaults.get(key)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(f"`{key}` is {value!r}; it must be a whole number of at least 1")
        return value

    def optional_int(self, key: str) -> int | None:
        value = self.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.error(f"`{key}` is {value!r}; it must be a token id")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.error(f"`{key}` is {value!r}; it must be true or false")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.error(f"`{key}` is {value!r}; it must be a number above 0")
        return float(value)


def merge_deep(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` on top; mappings are merged key by key, all else is replaced."""
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        merged[key] = merge_deep(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _apply_overrides(written: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """hf_overrides on top; the old names of rope keys count where the file uses the new ones."""
    merged = merge_deep(written, overrides)
    rope = merged.get("rope_parameters")
    if isinstance(rope, dict) and "rope_parameters" not in overrides:
        rope = dict(rope)
        if isinstance(overrides.get("rope_scaling"), Mapping):
            rope = {"rope_theta": rope.get("rope_theta"), **overrides["rope_scaling"]}
        if "rope_theta" in overrides:
            rope["rope_theta"] = overrides["rope_theta"]
        merged["rope_parameters"] = rope
    return merged


def _apply_rope(config: dict[str, Any], scaling: Mapping[str, Any], theta: float | str) -> dict[str, Any]:
    """The options `rope_scaling` and `rope_theta` in place of what config.json says, under the names it uses."""
    rope = config.get("rope_parameters")
    if scaling:
        config["rope_scaling"] = dict(scaling)
        if isinstance(rope, Mapping):
            rope = {"rope_theta": rope.get("rope_theta"), **scaling}
    if theta != "auto":
        config["rope_theta"] = theta
        if isinstance(rope, Mapping):
            rope = {**rope, "rope_theta": theta}
    if isinstance(rope, Mapping):
        config["rope_parameters"] = rope
    return config


def _family(reader: _Reader, config: Mapping[str, Any]) -> tuple[str, Family]:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise reader.error("`architectures` must list the model's class")
    if config.get("auto_map"):
        raise reader.error(
            "`auto_map` says that this model runs code from its repository, which `model.trust_remote_code` would "
            f"allow elsewhere and this build never does; if its weights are a plain `{names[0]}`, "
            "`model.hf_overrides: {auto_map: null}` says so",
            "M304",
        )
    if names[0] not in FAMILIES:
        raise reader.error(
            f"architecture `{names[0]}` is not supported; supported: {', '.join(sorted(FAMILIES))}", "M304"
        )
    if config.get("quantization_config") is not None:
        raise reader.error(
            "quantised checkpoints (`quantization_config`) are not supported by this build; `model.quantization` "
            "makes an unquantised one smaller while it loads",
            "M304",
        )
    return names[0], FAMILIES[names[0]]


def _shape(reader: _Reader, family: Family) -> dict[str, Any]:
    hidden, heads = reader.count("hidden_size"), reader.count("num_attention_heads")
    layers, kv_heads = reader.count("num_hidden_layers"), reader.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise reader.error(f"{heads} attention heads cannot share {kv_heads} key-value heads evenly")
    if reader.get("head_dim") is None and hidden % heads:
        raise reader.error(f"`hidden_size` {hidden} is no multiple of `num_attention_heads` {heads}")
    head_dim = reader.count("head_dim", hidden // heads)
    if head_dim % 2:
        raise reader.error(f"`head_dim` is {head_dim}; rotary embedding needs an even one")
    if (act := reader.get("hidden_act")) != "silu":
        raise reader.error(f"`hidden_act` {act!r} is not supported; supported: silu", "M304")
    window, window_layers = _sliding_window(reader, family, layers)
    bias = reader.flag("attention_bias") if family.attention_bias is None else family.attention_bias
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": reader.count("intermediate_size"),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": reader.count("vocab_size"),
        "max_position_embeddings": reader.count("max_position_embeddings"),
        "rms_norm_eps": reader.number("rms_norm_eps"),
        "hidden_act": act,
        "tie_word_embeddings": reader.flag("tie_word_embeddings"),
        "attention_bias": bias,
        "attention_out_bias": bias if family.attention_out_bias is None else family.attention_out_bias,
        "mlp_bias": reader.flag("mlp_bias") if family.mlp_bias is None else family.mlp_bias,
        "qk_norm": family.qk_norm,
        "sliding_window": window,
        "sliding_window_layers": window_layers,
    }


def _sliding_window(reader: _Reader, family: Family, num_layers: int) -> tuple[int | None, tuple[bool, ...]]:
    everything = (False,) * num_layers
    if reader.get("sliding_window") is None or "sliding_window" not in {**family.defaults, **reader.values}:
        return None, everything
    if family.model_type == "llama":
        return None, everything
    if family.window_by_layer and not reader.flag("use_sliding_window"):
        return None, everything
    window = reader.count("sliding_window")
    if not family.window_by_layer:
        return window, (True,) * num_layers
    kinds = reader.get("layer_types")
    if kinds is None:
        first = reader.get("max_window_layers")
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise reader.error(f"`max_window_layers` is {first!r}; it must be a number of layers")
        layers = tuple(index >= first for index in range(num_layers))
    elif isinstance(kinds, list) and len(kinds) == num_layers:
        layers = tuple(kind == "sliding_attention" for kind in kinds)
    else:
        raise reader.error(f"`layer_types` must name {num_layers} layers")
    return (window, layers) if any(layers) else (None, everything)


def _rope(reader: _Reader, config: Mapping[str, Any]) -> RopeSpec:
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise reader.error("`rope_parameters` must be an object")
    parameters = dict(scaling)
    kind = parameters.pop("rope_type", None) or parameters.pop("type", None) or "default"
    parameters.pop("type", None)
    theta = parameters.pop("rope_theta", None)
    if theta is None:
        theta = config.get("rope_theta", 10_000.0)
    if isinstance(theta, bool) or not isinstance(theta, int | float) or not theta > 0:
        raise reader.error(f"`rope_theta` is {theta!r}; it must be a number above 0")
    if not isinstance(kind, str):
        raise reader.error(f"`rope_type` is {kind!r}; it must be a name")
    for key in ("partial_rotary_factor", "original_max_position_embeddings"):
        if config.get(key) is not None:
            parameters.setdefault(key, config[key])
    return RopeSpec(theta=float(theta), kind=kind, parameters=parameters)


def _max_context(shape: Mapping[str, Any], scaling: Mapping[str, Any], disable_sliding_window: bool) -> int:
    """Tokens that the model can take: more with a scaling, and no more than the window where that is to be all."""
    limit = int(shape["max_position_embeddings"])
    kind, factor = scaling.get("rope_type") or scaling.get("type"), scaling.get("factor")
    if kind in ROPE_KINDS[1:] and isinstance(factor, int | float) and factor > 1:
        trained = scaling.get("original_max_position_embeddings") or limit
        limit = max(limit, int(trained * factor)) if isinstance(trained, int) else limit
    if disable_sliding_window and shape["sliding_window"] is not None:
        limit = min(limit, shape["sliding_window"])
    return limit


def _weights(folder: Path, deployment: Deployment, tied: bool) -> tuple[WeightFiles | None, dict[str, int]]:
    """The files, and how many parameters there are in each dtype; nothing with load_format dummy."""
    load = deployment.load
    if load.load_format == "dummy":
        return None, {}
    settings = load.model_loader_extra_config
    if settings_problem(load.load_format, settings):
        settings = {}  # reported by a rule
    weights = read_weight_files(folder, load.load_format, load.ignore_patterns, settings, load.pt_load_map_location)
    return weights, weights.count(tied)


def _checkpoint_dtype(reader: _Reader, folder: Path, counts: Mapping[str, int]) -> str:
    """That of most parameters; config.json's where there are no weights, bfloat16 where it is silent too."""
    if counts:
        stored = max(counts, key=lambda dtype: counts[dtype])
        if stored not in _SAFETENSORS_DTYPES:
            raise ModelFilesError(
                f"{folder}: weights are stored as {stored}; this build reads F32, BF16 and F16", code="M304"
            )
        return _SAFETENSORS_DTYPES[stored]
    named = reader.get("dtype") or reader.get("torch_dtype") or "bfloat16"
    return named if named in _SAFETENSORS_DTYPES.values() else "bfloat16"


def _count_parameters(shape: Mapping[str, Any]) -> int:
    """Parameters of a checkpoint of this shape, tied embeddings once."""
    hidden, inner, head_dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["num_heads"] * head_dim, shape["num_kv_heads"] * head_dim
    attention = hidden * (queries + 2 * keys) + queries * hidden
    attention += (queries + 2 * keys) * shape["attention_bias"] + hidden * shape["attention_out_bias"]
    attention += 2 * head_dim * shape["qk_norm"]
    mlp = 3 * hidden * inner + (2 * inner + hidden) * shape["mlp_bias"]
    embeddings = shape["vocab_size"] * hidden * (1 if shape["tie_word_embeddings"] else 2)
    return int(embeddings + shape["num_layers"] * (attention + mlp + 2 * hidden) + hidden)


def _sampling_defaults(folder: Path, deployment: Deployment) -> dict[str, Any]:
    """From the file that `model.generation_config` names; nothing for `none`, or if the model brings none."""
    source = deployment.model.generation_config
    if source == "none":
        return {}
    path = folder if source == "auto" else Path(deployment.located("model.generation_config"))
    if os.path.isdir(path):
        path = path / "generation_config.json"
    if source == "auto" and not os.path.isfile(path):
        return {}
    values = sampling.from_generation_config(read_json(path))
    if problem := sampling.problem(values):
        raise ModelFilesError(f"{path}: {problem}", code="M306")
    return values


def _tokenizer_path(deployment: Deployment, folder: Path) -> str | None:
    model = deployment.model
    if model.skip_tokenizer_init:
        return None
    wanted = OLDER_VOCABULARIES if model.tokenizer_mode == "slow" else (TOKENIZER_JSON, *OLDER_VOCABULARIES)
    if (name := tokenizer_source(deployment)) is not None:
        return str(locate(name, tokenizer_revision(deployment), hub_cache(deployment), *wanted))
    if not any(os.path.isfile(folder / file) for file in wanted):
        raise ModelFilesError(
            f"{folder}: holds no {wanted[0]}; name a tokenizer with `model.tokenizer`, or serve token ids only "
            "with `model.skip_tokenizer_init: true`",
            code="M307",
        )
    return str(folder)


def _eos_ids(reader: _Reader, folder: Path, vocab_size: int) -> tuple[int, ...]:
    """End-of-sequence ids: generation_config.json's first, which chat models extend, then config.json's."""
    path = folder / "generation_config.json"
    ids: list[int] = []
    for value in (read_json(path).get("eos_token_id") if os.path.isfile(path) else None, reader.get("eos_token_id")):
        for token in value if isinstance(value, list) else [value]:
            if token is None:
                continue
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                raise reader.error(f"`eos_token_id` holds {token!r}; the vocabulary has {vocab_size} tokens")
            if token not in ids:
                ids.append(token)
    return tuple(ids)
