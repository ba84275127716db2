"""Layers with a recurrent state, as the families that have them write them in config.json."""

from __future__ import annotations

from typing import Literal

from .config_json import ConfigJson, ModelConfigError
from .spec import GatedDelta, ShortConvolution

Kind = Literal["none", "gated_delta", "grouped_gated_delta", "short_convolution"]
_NAMES = {  # in `layer_types`
    "gated_delta": "linear_attention",
    "grouped_gated_delta": "linear_attention",
    "short_convolution": "conv",
}


def read_states(config: ConfigJson, kind: Kind, num_layers: int) -> tuple[GatedDelta | ShortConvolution | None, ...]:
    """By layer; None where the layer has attention. Raises ModelConfigError for numbers that contradict each other."""
    if kind == "none":
        return (None,) * num_layers
    is_grouped = kind == "grouped_gated_delta"
    state = _short_convolution(config) if kind == "short_convolution" else _gated_delta(config, is_grouped=is_grouped)
    has_state = _has_state(config, kind, num_layers)
    if all(has_state):
        raise ModelConfigError("no layer has attention; this build needs one", "M304")
    return tuple(state if has_one else None for has_one in has_state)


def _has_state(config: ConfigJson, kind: Kind, num_layers: int) -> list[bool]:
    names = config.layer_types(num_layers, ("full_attention", _NAMES[kind]))
    if names is not None:
        return [name == _NAMES[kind] for name in names]
    if kind != "short_convolution":
        interval = config.count("full_attention_interval")
        return [(index + 1) % interval != 0 for index in range(num_layers)]
    full = config.get("full_attn_idxs")
    if full is None:
        return [False] * num_layers
    if not isinstance(full, list):
        raise ModelConfigError("`full_attn_idxs` must be a list of layers")
    return [index not in full for index in range(num_layers)]


def _gated_delta(config: ConfigJson, *, is_grouped: bool) -> GatedDelta:
    key_heads, value_heads = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    if value_heads % key_heads:
        raise ModelConfigError(f"{value_heads} value heads cannot share {key_heads} key heads evenly")
    return GatedDelta(
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_dim=config.count("linear_key_head_dim"),
        value_dim=config.count("linear_value_head_dim"),
        conv_width=_conv_width(config, "linear_conv_kernel_dim"),
        is_grouped=is_grouped,
    )


def _short_convolution(config: ConfigJson) -> ShortConvolution:
    return ShortConvolution(
        width=config.count("hidden_size"),
        conv_width=_conv_width(config, "conv_L_cache"),
        has_bias=config.flag("conv_bias"),
    )


def _conv_width(config: ConfigJson, key: str) -> int:
    width = config.count(key)
    if not 2 <= width <= 64:
        raise ModelConfigError(f"`{key}` is {width}; it must be a number of tokens from 2 to 64")
    return width


def adjusted_width(config: ConfigJson) -> int:
    """Of LFM2's feed-forward blocks: two thirds of what is written, in whole multiples, unless it says otherwise."""
    width = config.count("block_ff_dim", config.count("intermediate_size"))
    if not config.flag("block_auto_adjust_ff_dim"):
        return width
    width = 2 * width // 3
    if config.get("block_ffn_dim_multiplier") is None:
        return width
    multiple = config.count("block_multiple_of")
    return -(-int(config.number("block_ffn_dim_multiplier", 0, 1e3) * width) // multiple) * multiple
