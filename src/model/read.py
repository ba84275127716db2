"""ModelSpec from config.json: strictly for the families that are known (families.py), else by guess.py.

Defaults for keys that config.json leaves out are those of the transformers library, per family. Both spellings of its
releases are read: `dtype` and `torch_dtype`, `rope_parameters` and `rope_theta` with `rope_scaling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config_json import ConfigJson, ModelConfigError, shown
from .families import FAMILIES, Family
from .guess import guess, named_dtype
from .quantisation_config import read_quantisation
from .rope import read_rope
from .spec import MLP, Attention, LayerSpec, ModelSpec

READ_KEYS = {  # of config.json, under any spelling
    *("architectures", "attention_bias", "bos_token_id", "dtype", "eos_token_id", "head_dim", "hidden_act"),
    *("hidden_size", "intermediate_size", "layer_types", "max_position_embeddings", "max_window_layers", "mlp_bias"),
    *("num_attention_heads", "num_hidden_layers", "num_key_value_heads", "original_max_position_embeddings"),
    *("pad_token_id", "partial_rotary_factor", "quantization_config", "rms_norm_eps", "rope_parameters"),
    *("rope_scaling", "rope_theta", "sliding_window", "tie_word_embeddings", "torch_dtype", "use_sliding_window"),
    "vocab_size",
}
_LAYER_KINDS = ("full_attention", "sliding_attention")


def read_config(values: Mapping[str, Any]) -> ModelSpec:
    """The model that config.json describes. Raises ModelConfigError if it is malformed or absurd."""
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    family = FAMILIES.get(name) if isinstance(name, str) else None
    return guess(values) if family is None else _read(ConfigJson(values, family.defaults), str(name), family)


def family_config(values: Mapping[str, Any], spec: ModelSpec) -> ConfigJson:
    """config.json with the defaults of its family, for keys that are not part of the description."""
    family = FAMILIES.get(spec.architecture)
    return ConfigJson(values, family.defaults if family is not None else {})


def _read(config: ConfigJson, name: str, family: Family) -> ModelSpec:
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    num_layers, kv_heads = config.count("num_hidden_layers"), config.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelConfigError(f"{heads} attention heads cannot share {kv_heads} key-value heads evenly")
    if config.get("head_dim") is None and hidden % heads:
        raise ModelConfigError(f"`hidden_size` {hidden} is no multiple of `num_attention_heads` {heads}")
    head_dim = config.count("head_dim", hidden // heads)
    if head_dim % 2:
        raise ModelConfigError(f"`head_dim` is {head_dim}; rotary embedding needs an even one")
    activation = config.get("hidden_act")
    windows = _windows(config, family, num_layers)
    has_bias = config.flag("attention_bias") if family.attention_bias is None else family.attention_bias
    attention = Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        has_bias=has_bias,
        has_out_bias=has_bias if family.attention_out_bias is None else family.attention_out_bias,
        has_head_norms=family.qk_norm,
        rope=read_rope(config, head_dim),
    )
    mlp = MLP(
        width=config.count("intermediate_size"),
        activation=activation if isinstance(activation, str) else shown(activation),
        has_bias=config.flag("mlp_bias") if family.mlp_bias is None else family.mlp_bias,
    )
    layer_of = {
        window: LayerSpec(mixer=attention.model_copy(update={"window": window}), feed_forward=mlp)
        for window in set(windows)
    }
    method, bits = read_quantisation(config.values, config.values)
    return ModelSpec(
        architecture=name,
        model_type=family.model_type,
        hidden_size=hidden,
        vocab_size=config.count("vocab_size"),
        max_position_embeddings=config.count("max_position_embeddings"),
        is_tied=config.flag("tie_word_embeddings"),
        norm_eps=config.number("rms_norm_eps", 0, 1),
        layers=tuple(layer_of[window] for window in windows),
        dtype=named_dtype(config.values, config.values),
        quantization=method,
        quantization_bits=bits,
    )


def _windows(config: ConfigJson, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """The sliding window of each layer."""
    everything = (None,) * num_layers
    if config.get("sliding_window") is None or family.model_type == "llama":
        return everything
    if family.window_by_layer and not config.flag("use_sliding_window"):
        return everything
    window = config.count("sliding_window")
    if not family.window_by_layer:
        return (window,) * num_layers
    kinds = config.get("layer_types")
    if kinds is None:
        first = config.get("max_window_layers")
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise ModelConfigError(f"`max_window_layers` is {shown(first)}; it must be a number of layers")
        return tuple(window if index >= first else None for index in range(num_layers))
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise ModelConfigError(f"`layer_types` must name {num_layers} layers")
    if unknown := [kind for kind in kinds if kind not in _LAYER_KINDS]:
        raise ModelConfigError(f"`layer_types` has {shown(unknown[0])}; known: {', '.join(_LAYER_KINDS)}", "M304")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
