"""ModelSpec from config.json, generation_config.json and the headers of its weight files.

Defaults for keys that config.json leaves out are those of the transformers library, per family. Both spellings of its
releases are read: `dtype` and `torch_dtype`, `rope_parameters` and `rope_theta` with `rope_scaling`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.layout import WeightFiles, read_weight_files
from ..checkpoint.match import Shapes, matched, split_fused
from ..checkpoint.model_files import is_hub_id, locate, read_json, read_json_if_any
from ..checkpoint.settings import settings_problem
from ..checkpoint.stored import FLOAT_DTYPES
from ..errors import ModelFilesError
from . import sampling
from .config_json import ConfigJson, shown
from .families import FAMILIES, Family
from .resolved import ModelSpec
from .rope import ROPE_KINDS, apply_options, read_rope, read_theta
from .tensors import wanted_tensors

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
GENERATION_CONFIG = "generation_config.json"
_LAYER = re.compile(r"model\.layers\.(\d{1,9})\.")
_LAYER_KINDS = ("full_attention", "sliding_attention")


def read_spec(deployment: Deployment) -> ModelSpec:
    """Everything known about the model without loading it.

    Raises ModelFilesError (exit code 3), naming file and fault; ModelNotLocal if it must be downloaded first.
    """
    model, cache = deployment.model, hub_cache(deployment)
    folder = model_folder(deployment, cache)
    path = config_folder(deployment, folder, cache) / "config.json"
    written = read_json(path)
    merged = _apply_overrides(written, model.hf_overrides)
    own_theta = read_theta(ConfigJson(path, merged))
    config_json = ConfigJson(path, apply_options(merged, model.rope_scaling, model.rope_theta))
    name, family = _family(config_json)
    config_json = config_json.with_defaults(family.defaults)
    shape = _shape(config_json, family)
    rope = read_rope(config_json, shape["head_dim"], may_be_unknown=bool(model.rope_scaling))
    max_context = _max_context(shape, model.rope_scaling, model.disable_sliding_window)
    if model.disable_sliding_window:
        shape["sliding_window_layers"] = (False,) * shape["num_layers"]
    tensors = dict(wanted_tensors(shape))
    weights = _weights(config_json, folder, deployment, tensors)
    tokenizer_path = _tokenizer_path(deployment, folder)
    return ModelSpec(
        model_path=str(folder),
        architecture=name,
        model_type=family.model_type,
        **shape,
        rope=rope,
        max_context=max_context,
        checkpoint_dtype=_checkpoint_dtype(config_json, weights),
        num_parameters=sum(map(math.prod, tensors.values())),
        eos_token_ids=_eos_ids(config_json, folder, shape["vocab_size"]),
        bos_token_id=config_json.optional_int("bos_token_id"),
        pad_token_id=config_json.optional_int("pad_token_id"),
        sampling_defaults=_sampling_defaults(folder, deployment),
        tokenizer_path=tokenizer_path,
        weight_files=weights.names if weights else (),
        weight_format=weights.format if weights else "dummy",
        config_path=str(path.parent),
        own_rope_theta=own_theta,
        unused_overrides=tuple(key for key in model.hf_overrides if key not in {*written, *_READ_KEYS}),
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


def _family(config_json: ConfigJson) -> tuple[str, Family]:
    names, config = config_json.get("architectures"), config_json.values
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise config_json.error("`architectures` must list the model's class")
    for place in ("", *(key for key, value in config.items() if isinstance(value, Mapping))):
        part = config[place] if place else config
        if part.get("auto_map"):
            null = f"{{{place}: {{auto_map: null}}}}" if place else "{auto_map: null}"
            raise config_json.error(
                f"`auto_map`{f' in `{place}`' * bool(place)} says that this model runs code from its repository, which "
                "`model.trust_remote_code` would allow elsewhere and this build never does; if its weights are a plain "
                f"`{names[0]}`, `model.hf_overrides: {null}` says so",
                "M304",
            )
    if names[0] not in FAMILIES:
        raise config_json.error(
            f"architecture `{names[0]}` is not supported; supported: {', '.join(sorted(FAMILIES))}", "M304"
        )
    if config_json.get("quantization_config") is not None:
        raise config_json.error(
            "quantised checkpoints (`quantization_config`) are not supported by this build; `model.quantization` "
            "makes an unquantised one smaller while it loads",
            "M304",
        )
    return names[0], FAMILIES[names[0]]


def _shape(config_json: ConfigJson, family: Family) -> dict[str, Any]:
    hidden, heads = config_json.count("hidden_size"), config_json.count("num_attention_heads")
    layers, kv_heads = config_json.count("num_hidden_layers"), config_json.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config_json.error(f"{heads} attention heads cannot share {kv_heads} key-value heads evenly")
    if config_json.get("head_dim") is None and hidden % heads:
        raise config_json.error(f"`hidden_size` {hidden} is no multiple of `num_attention_heads` {heads}")
    head_dim = config_json.count("head_dim", hidden // heads)
    if head_dim % 2:
        raise config_json.error(f"`head_dim` is {head_dim}; rotary embedding needs an even one")
    if (act := config_json.get("hidden_act")) != "silu":
        raise config_json.error(f"`hidden_act` {shown(act)} is not supported; supported: silu", "M304")
    window, window_layers = _sliding_window(config_json, family, layers)
    bias = config_json.flag("attention_bias") if family.attention_bias is None else family.attention_bias
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": config_json.count("intermediate_size"),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": config_json.count("vocab_size"),
        "max_position_embeddings": config_json.count("max_position_embeddings"),
        "rms_norm_eps": config_json.number("rms_norm_eps", 0, 1),
        "hidden_act": act,
        "tie_word_embeddings": config_json.flag("tie_word_embeddings"),
        "attention_bias": bias,
        "attention_out_bias": bias if family.attention_out_bias is None else family.attention_out_bias,
        "mlp_bias": config_json.flag("mlp_bias") if family.mlp_bias is None else family.mlp_bias,
        "qk_norm": family.qk_norm,
        "sliding_window": window,
        "sliding_window_layers": window_layers,
    }


def _sliding_window(config_json: ConfigJson, family: Family, num_layers: int) -> tuple[int | None, tuple[bool, ...]]:
    everything = (False,) * num_layers
    if config_json.get("sliding_window") is None or "sliding_window" not in {**family.defaults, **config_json.values}:
        return None, everything
    if family.model_type == "llama":
        return None, everything
    if family.window_by_layer and not config_json.flag("use_sliding_window"):
        return None, everything
    window = config_json.count("sliding_window")
    if not family.window_by_layer:
        return window, (True,) * num_layers
    kinds = config_json.get("layer_types")
    if kinds is None:
        first = config_json.get("max_window_layers")
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise config_json.error(f"`max_window_layers` is {shown(first)}; it must be a number of layers")
        layers = tuple(index >= first for index in range(num_layers))
    elif isinstance(kinds, list) and len(kinds) == num_layers:
        if unknown := [kind for kind in kinds if kind not in _LAYER_KINDS]:
            raise config_json.error(f"`layer_types` has {shown(unknown[0])}; known: {', '.join(_LAYER_KINDS)}", "M304")
        layers = tuple(kind == "sliding_attention" for kind in kinds)
    else:
        raise config_json.error(f"`layer_types` must name {num_layers} layers")
    return (window, layers) if any(layers) else (None, everything)


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


def _weights(config_json: ConfigJson, folder: Path, deployment: Deployment, shapes: Shapes) -> WeightFiles | None:
    """The files, which have these tensors and no others; None with load_format dummy."""
    load, tied = deployment.load, config_json.flag("tie_word_embeddings")
    if load.load_format == "dummy":
        return None
    settings = load.model_loader_extra_config
    if settings_problem(load.load_format, settings):
        settings = {}  # reported by a rule
    weights = read_weight_files(folder, load.load_format, load.ignore_patterns, settings, load.pt_load_map_location)
    tensors = split_fused(weights.tensors, shapes) if weights.format == "sharded_state" else weights.tensors
    _check_layers(config_json, tensors)
    return replace(weights, tensors=matched(folder, tensors, shapes, is_tied=tied))


def _check_layers(config_json: ConfigJson, tensors: Iterable[str]) -> None:
    """One sentence instead of a list of tensors."""
    wanted = config_json.count("num_hidden_layers")
    stored = 1 + max((int(match[1]) for name in tensors if (match := _LAYER.match(name))), default=-1)
    if stored and stored != wanted:
        raise config_json.error(f"`num_hidden_layers` is {wanted}, but its weight files have {stored} layers")


def _checkpoint_dtype(config_json: ConfigJson, weights: WeightFiles | None) -> str:
    """That of most parameters; config.json's where there are no weights, bfloat16 where it is silent too."""
    if weights is not None:
        counts = weights.count()
        return FLOAT_DTYPES[max(counts, key=lambda dtype: counts[dtype])]
    named = config_json.get("dtype") or config_json.get("torch_dtype")
    return named if named in FLOAT_DTYPES.values() else "bfloat16"


def _sampling_defaults(folder: Path, deployment: Deployment) -> dict[str, Any]:
    """From the file that `model.generation_config` names; nothing for `none`, or if the model brings none."""
    source = deployment.model.generation_config
    if source == "none":
        return {}
    path = folder if source == "auto" else Path(deployment.located("model.generation_config"))
    if os.path.isdir(path):
        path = path / GENERATION_CONFIG
    content = read_json_if_any(path) if source == "auto" else read_json(path)
    values = sampling.from_generation_config(content)
    if problem := sampling.problem(values):
        raise ModelFilesError(f"{path}: {problem}", code="M306")
    return values


def _tokenizer_path(deployment: Deployment, folder: Path) -> str | None:
    model = deployment.model
    if model.skip_tokenizer_init:
        return None
    wanted = OLDER_VOCABULARIES if model.tokenizer_mode == "slow" else (TOKENIZER_JSON, *OLDER_VOCABULARIES)
    if (name := tokenizer_source(deployment)) is not None:
        folder = locate(name, tokenizer_revision(deployment), hub_cache(deployment), *wanted)
    elif not any(os.path.lexists(folder / file) for file in wanted):
        raise ModelFilesError(
            f"{folder}: holds no {wanted[0]}; name a tokenizer with `model.tokenizer`, or serve token ids only "
            "with `model.skip_tokenizer_init: true`",
            code="M307",
        )
    path = folder / "tokenizer_config.json"
    named = read_json_if_any(path).get("auto_map")
    if named and (not isinstance(named, Mapping) or named.get("AutoTokenizer")):
        raise ModelFilesError(
            f"{path}: `auto_map` says that this tokenizer is code from its repository, which "
            "`model.trust_remote_code` would allow elsewhere and this build never does; name another tokenizer with "
            "`model.tokenizer`: if the tokenizer.json alone is right, a directory that has only this file",
            code="M304",
        )
    return str(folder)


def _eos_ids(config_json: ConfigJson, folder: Path, vocab_size: int) -> tuple[int, ...]:
    """End-of-sequence ids: generation_config.json's first, which chat models extend, then config.json's."""
    path = folder / GENERATION_CONFIG
    ids: dict[int, None] = {}  # ordered
    for file, value in (
        (path, read_json_if_any(path).get("eos_token_id")),
        (config_json.path, config_json.get("eos_token_id")),
    ):
        for token in value if isinstance(value, list) else [value]:
            if token is None:
                continue
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                said = f"`eos_token_id` holds {shown(token)}; the vocabulary has {vocab_size} tokens"
                raise ModelFilesError(f"{file}: {said}", code="M306")
            ids[token] = None
    return tuple(ids)
