"""A small random model of an architecture of the transformers library: the layers of a model in little memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

_NUM_LAYERS = 4  # if more are needed for each kind of layer, as many as that takes
_VOCAB_SIZE = 512
_WIDTH = 64  # of feed-forward layers
_WINDOW = 5
_NUM_KV_HEADS = 2
_NUM_HEADS = 4  # if each has its own keys and values
_LAYERS_OF_SIDES = ("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers")
_HEADS_OF_SIDES = tuple(f"{number}{side}_attention_heads" for number in ("", "num_") for side in ("encoder", "decoder"))
_SPREAD = 1.2  # standard deviation of the sums of a layer with random weights


def small_model(
    values: Mapping[str, Any], config_class: type[PretrainedConfig], model_class: type[PreTrainedModel]
) -> PreTrainedModel:
    """A model in float32 with the same random weights each time."""
    config = small_config(values, config_class)
    model: PreTrainedModel = model_class._from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    spread = _SPREAD / config.hidden_size**0.5
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * spread)
    return model


def small_config(values: Mapping[str, Any], config_class: type[PretrainedConfig]) -> PretrainedConfig:
    """The configuration `values` with fewer layers, heads and tokens, narrow layers and a short window.

    What attention depends on stays: the size of a head, how many share their keys and values, positions, and scales.
    """
    config = config_class.from_dict(dict(values))
    given = dict(values)
    num_layers = config.num_hidden_layers
    num_kept, heads = _num_kept(config, num_layers), _heads(config)
    for name, value in config.to_dict().items():
        if isinstance(value, list) and len(value) == num_layers:
            given[name] = value = value[:num_kept]
        if name.endswith(("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")):
            given[name] = [min(each, _WIDTH) for each in value] if isinstance(value, list) else value and _WIDTH
        elif name.endswith("sliding_window") and isinstance(value, int) and value:
            given[name] = min(value, _WINDOW)
        elif name.endswith("token_id") and isinstance(value, int) and value >= _VOCAB_SIZE:
            given[name] = 0
        elif (name.startswith("vocab_size") or name.endswith("vocab_size")) and isinstance(value, int):
            given[name] = min(value, _VOCAB_SIZE)
        elif isinstance(value, dict) and value.get("kv_n_heads") is not None:  # DBRX
            given[name] = value | {
                "kv_n_heads": min(value["kv_n_heads"], heads.get("num_key_value_heads", _NUM_KV_HEADS))
            }
    if given.pop("num_layers_per_stack", None) is not None:  # HRM, which computes it, and then the number of layers
        num_kept = 1
    names = config.attribute_map
    layers = [name for name in _LAYERS_OF_SIDES if name in given] or ["num_hidden_layers"]
    for name, size in {**heads, **dict.fromkeys(layers, num_kept)}.items():
        given[names.get(name, name)] = size
    for name in _HEADS_OF_SIDES:
        if name in given:
            given[name] = heads["num_attention_heads"]
    return config_class.from_dict(given, attn_implementation="eager")


def _num_kept(config: PretrainedConfig, num_layers: int) -> int:
    """The number of first layers among which each kind is."""
    num_kept = _NUM_LAYERS
    for name, value in config.to_dict().items():
        if isinstance(value, list) and len(value) == num_layers:
            kinds = [str(each) for each in value]
            num_kept = max(num_kept, 1 + max(map(kinds.index, set(kinds))))
        elif name.endswith(("_pattern", "_interval", "_step", "_freq", "_period")) and isinstance(value, int):
            num_kept = max(num_kept, 1 + value)
    return min(num_kept, num_layers)


def _heads(config: Any) -> dict[str, int]:
    """Numbers of heads, and the width of the hidden states, which is that of all heads together."""
    num_heads, hidden_size = config.num_attention_heads, config.hidden_size
    num_kv_heads = getattr(config, "num_key_value_heads", None)
    if num_kv_heads is None or num_kv_heads == num_heads:
        kept = kept_kv = min(num_heads, _NUM_HEADS)
    else:
        kept_kv = min(num_kv_heads, _NUM_KV_HEADS)
        kept = kept_kv * num_heads // num_kv_heads
    found = {"num_attention_heads": kept, "hidden_size": hidden_size // num_heads * kept}
    return found if num_kv_heads is None else found | {"num_key_value_heads": kept_kv}
