"""params.json, the configuration file of Mistral AI's own format, as the config.json of the same model.

Every key is either translated or known to change nothing: an unknown one could change what the model computes. Weights
of this format have their own names (families/mistral.py), and neighbours in queries and keys are rotated together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .config_json import ConfigJson, ModelConfigError, shown

_COUNTS = {  # key of config.json -> key of params.json
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "hidden_dim",
    "vocab_size": "vocab_size",
}
_EXPERTS = {"num_local_experts": "num_experts", "num_experts_per_tok": "num_experts_per_tok"}
_NO_EFFECT = {"max_batch_size", "use_cache"}  # on what the model computes
_ONLY = {  # the only value of a key that is computed; also null
    "activation": "silu",
    "model_type": "transformer",
    "use_biases": False,
    "causal": True,
}
_OTHER_ATTENTION = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
_CONTEXT = 32768  # tokens, of a file that does not say: the shortest of the models that Mistral AI published
_MAX_FACTOR = 1e6


def config_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ModelConfigError for a value that is missing or invalid, and for a key with an unknown meaning."""
    read = ConfigJson(
        params, own_keys={**_COUNTS, "rms_norm_eps": "norm_eps", "tie_word_embeddings": "tied_embeddings"}
    )
    _refuse(read, "attention over latents", _OTHER_ATTENTION)
    for key, value in _ONLY.items():
        if (found := read.get(key)) is not None and found != value:
            raise ModelConfigError(f"`{key}` is {shown(found)}; supported: {shown(value)}", "M304")
    heads = read.count("num_attention_heads")
    config: dict[str, Any] = {key: read.count(key) for key in _COUNTS if key not in ("head_dim", "num_key_value_heads")}
    config |= {
        "architectures": [_class(read)],
        "num_key_value_heads": read.count("num_key_value_heads", heads),
        "head_dim": read.count("head_dim", config["hidden_size"] // heads or None),
        "rms_norm_eps": read.number("rms_norm_eps", 0, 1),
        "tie_word_embeddings": read.flag("tie_word_embeddings"),
        "max_position_embeddings": _context(read),
        "sliding_window": _window(read),
        **_rope(read),
        **_experts(read),
        "bos_token_id": 1,  # of all vocabularies of Mistral AI
        "eos_token_id": 2,
    }
    if read.get("quantization"):
        config["quantization_config"] = {"quant_method": _quantisation(read)}
    _check_known(params, {*read.read, *_NO_EFFECT})
    return config


def _context(read: ConfigJson) -> int:
    return read.count("max_position_embeddings", read.count("max_seq_len", _CONTEXT))


def _window(read: ConfigJson) -> int | None:
    """One for all layers. Some files list one for each of several layers, which repeat."""
    value = read.get("sliding_window")
    if isinstance(value, list) and value and all(each == value[0] for each in value):
        value = value[0]
    if isinstance(value, list):
        raise ModelConfigError(f"`sliding_window` is {shown(value)}; supported: the same window in all layers", "M304")
    return None if value is None else ConfigJson({"sliding_window": value}).count("sliding_window")


def _rope(read: ConfigJson) -> dict[str, Any]:
    theta = read.number("rope_theta", 1, 1e15, 10_000.0)
    yarn, growth = _part(read, "yarn"), _part(read, "llama_4_scaling")
    if yarn is None and growth is None:
        return {"rope_theta": theta}
    rope: dict[str, Any] = {"rope_type": "default"}
    if yarn is not None:
        rope |= {
            "rope_type": "yarn",
            "factor": yarn.number("factor", 1, _MAX_FACTOR),
            "original_max_position_embeddings": yarn.count("original_max_position_embeddings"),
            "beta_fast": yarn.number("beta", 0, _MAX_FACTOR, 32.0),
            "beta_slow": yarn.number("alpha", 0, _MAX_FACTOR, 1.0),
        }
        if not yarn.flag("apply_scale", True):  # of the products of queries and keys
            rope["attention_factor"] = 1.0
        _check_known(yarn.values, yarn.read, "yarn.")
    if growth is not None:
        trained = growth.count("original_max_position_embeddings")
        if rope.setdefault("original_max_position_embeddings", trained) != trained:
            raise ModelConfigError(
                "`yarn.original_max_position_embeddings` and `llama_4_scaling.original_max_position_embeddings` differ",
                "M304",
            )
        rope["llama_4_scaling_beta"] = growth.number("beta", 0, 100)
        _check_known(growth.values, growth.read, "llama_4_scaling.")
    return {"rope_theta": theta, "rope_scaling": rope}


def _experts(read: ConfigJson) -> dict[str, Any]:
    """Experts as in Mixtral, in every layer."""
    moe = _part(read, "moe")
    if moe is None:
        return {}
    _refuse(moe, "shared experts, or groups of them", ("num_shared_experts",), "moe.")
    found: dict[str, Any] = {key: moe.count(name) for key, name in _EXPERTS.items()}
    if moe.get("expert_hidden_dim") is not None:
        found["intermediate_size"] = moe.count("expert_hidden_dim")
    _check_known(moe.values, moe.read, "moe.")
    return found


def _class(read: ConfigJson) -> str:
    """A model that also reads images is served as a model of text; one that hears is not."""
    media = _part(read, "multimodal")
    if media is not None and media.get("whisper_model_args"):
        raise ModelConfigError("`multimodal.whisper_model_args`: models with audio are not supported", "M304")
    if media is None and _part(read, "vision_encoder") is None:
        if _part(read, "moe") is not None:
            return "MixtralForCausalLM"
        return "MistralForCausalLM" if _part(read, "llama_4_scaling") is None else "Ministral3ForCausalLM"
    if _part(read, "moe") is not None:
        raise ModelConfigError("`vision_encoder` beside `moe` is not supported", "M304")
    return "Mistral3ForConditionalGeneration"  # whose text model may be described at the top


def _quantisation(read: ConfigJson) -> str:
    """Name of the quantisation in config.json."""
    part = _part(read, "quantization")
    found = None if part is None else part.get("qformat_weight")
    return "fp8" if found == "fp8_e4m3" else shown(found)


def _part(read: ConfigJson, key: str) -> ConfigJson | None:
    value = read.get(key)
    if not value:
        return None
    if not isinstance(value, Mapping):
        raise ModelConfigError(f"`{key}` is {shown(value)}; it must be an object")
    return read.part(value)


def _refuse(read: ConfigJson, what: str, keys: Iterable[str], place: str = "") -> None:
    if named := [key for key in keys if read.get(key)]:
        raise ModelConfigError(f"`{place}{named[0]}`: {what}, which this build reads from config.json only", "M304")


def _check_known(values: Mapping[str, Any], known: Iterable[str], place: str = "") -> None:
    unknown = sorted(key for key in values if key not in known and values[key] is not None)
    if unknown:
        names = ", ".join(f"`{place}{shown(key)[1:-1]}`" for key in unknown[:5])
        raise ModelConfigError(
            f"{names}: unknown, so this build cannot compute what the model does; a repository of the same model "
            "with a config.json can be served",
            "M304",
        )
