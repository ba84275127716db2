"""Attention of each layer from config.json.

What comes in is config.json and the family; what goes out is one Attention for each layer. It is read in three steps:

    _attention   what all layers have: heads, biases, scale
    _wide        what layers without a window have instead, in families where their heads have another size
    _of_layer    the window, the rotary embedding and the shared keys of one layer
"""

from __future__ import annotations

import math
from typing import Any

from .block_index import check_rotation, read_block_index
from .config_json import ConfigJson, ModelConfigError
from .families import Family
from .family_settings import MAX_SCALE, flag_of, is_causal, limit_of
from .layer_positions import read_ropes, read_windows
from .mixers import Attention, HeadNorm, QueryGrowth, RopeSpec
from .per_layer_config import listed_changes

_BY_LAYER = {"head_dim", "num_key_value_heads"}


def read_attentions(config: ConfigJson, family: Family, hidden: int, num_layers: int) -> list[Attention]:
    """Attention of each layer. Raises ModelConfigError."""
    windows = read_windows(config, family, num_layers)
    attention = _attention(config, family, hidden)
    wide, narrow = _wide(config, attention, windows), _narrow(family, attention)
    ropes = read_ropes(config, family, attention.head_dim, wide.head_dim, windows)
    sources = _sources(config, family, windows)
    layers = [
        _of_layer(config, wide if window is None else narrow, window, rope, source)
        for window, rope, source in zip(windows, ropes, sources, strict=True)
    ]
    return [_differential(each, index) for index, each in enumerate(layers)] if family.is_differential else layers


def _differential(attention: Attention, index: int) -> Attention:
    """The difference of heads in pairs, as Attention describes it. Key head n and that half of all heads after it are
    a pair."""
    if attention.num_kv_heads % 2:
        raise ModelConfigError(f"{attention.num_kv_heads} key-value heads cannot be pairs")
    return attention.model_copy(
        update={
            "num_kv_heads": attention.num_kv_heads // 2,
            "head_dim": 2 * attention.head_dim,
            "scale": attention.head_dim**-0.5,
            "lambda_start": 0.8 - 0.6 * math.exp(-0.3 * index),
        }
    )


def _sources(config: ConfigJson, family: Family, windows: tuple[int | None, ...]) -> list[int | None]:
    """Layer whose keys and values each layer reads: the last one of its kind that has some; None: its own."""
    num_layers = len(windows)
    if not family.shares_keys or not config.get("num_kv_shared_layers"):
        return [None] * num_layers
    first = num_layers - config.count("num_kv_shared_layers")
    last = {window: index for index, window in enumerate(windows[: max(0, first)])}
    if missing := set(windows) - last.keys():
        kind = "a window" if missing != {None} else "full attention"
        raise ModelConfigError(
            f"`num_kv_shared_layers` is {num_layers - first}: none of the other layers has {kind}, and so keys and "
            "values for those that share them"
        )
    return [None if index < first else last[window] for index, window in enumerate(windows)]


def _attention(config: ConfigJson, family: Family, hidden: int) -> Attention:
    """Attention without windows and positions."""
    heads = config.count("num_attention_heads")
    kv_heads = _kv_heads(config, family, heads)
    _check_sharing(heads, kv_heads)
    width = 2 * hidden if family.has_blocks else hidden
    if config.get("head_dim") is None and width % heads:
        raise ModelConfigError(f"`hidden_size` {hidden} is no multiple of `num_attention_heads` {heads}")
    head_dim = config.count("head_dim", width // heads)
    if head_dim % 2:
        raise ModelConfigError(f"`head_dim` is {head_dim}; rotary embedding needs an even one")
    has_norm = family.head_norm_if is None or config.flag(family.head_norm_if)
    head_norm: HeadNorm = family.head_norm if has_norm else "none"
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        is_causal=is_causal(config, family),
        value_dim=_value_dim(config, family, head_dim),
        has_bias=flag_of(config, family.bias),
        has_out_bias=flag_of(config, family.out_bias),
        head_norm=head_norm,
        scale=_scale(config, family, head_dim),
        softcap=limit_of(config, family, "softcap"),
        has_sinks=family.sinks == "all",
        gate=family.gate if family.gate_if is None or config.flag(family.gate_if) else "none",
        has_value_norm=family.has_value_norm,
        is_chunked=family.windows == "chunks",
        alibi=family.alibi if config.flag("alibi", family.rope_layers == "none") else "none",
        bias_buckets=config.count("relative_attention_num_buckets") if family.has_distance_biases else None,
        is_grouped=family.is_grouped,
        qkv_parts=family.qkv_parts,
        index=read_block_index(config, head_dim) if family.has_block_index else None,
    )


def _value_dim(config: ConfigJson, family: Family, head_dim: int) -> int | None:
    size = head_dim if family.value_dim_key is None else config.count(family.value_dim_key, head_dim)
    if size > head_dim:
        raise ModelConfigError(f"`{family.value_dim_key}` is {size}, more than `head_dim`", "M304")
    return None if size == head_dim else size


def _scale(config: ConfigJson, family: Family, head_dim: int) -> float | None:
    """The factor of products of queries and keys; None: it follows from the size of a head."""
    if "query_pre_attn_scalar" in family.defaults:
        scale: float = config.number("query_pre_attn_scalar", 0, MAX_SCALE) ** -0.5
        return scale
    if "scale" in family.multipliers:
        return limit_of(config, family, "scale")
    if family.has_value_norm:  # normed queries and keys of Gemma 4
        return 1.0
    if family.has_blocks:  # with twice the model's width
        return float((head_dim / 2) ** -0.5)
    return family.scale


def _kv_heads(config: ConfigJson, family: Family, heads: int) -> int:
    is_new = config.flag("new_decoder_architecture")  # Falcon 40B and later
    if family.one_key_if is not None and config.flag(family.one_key_if) and not is_new:
        return 1
    return config.count("num_key_value_heads", heads)


def _check_sharing(heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        raise ModelConfigError(f"{heads} attention heads cannot share {kv_heads} key-value heads evenly")


def _narrow(family: Family, attention: Attention) -> Attention:
    """Attention of layers with a window."""
    kv_heads = attention.num_kv_heads * family.window_kv_heads
    _check_sharing(attention.num_heads, kv_heads)
    return attention.model_copy(update={"num_kv_heads": kv_heads, "has_sinks": family.sinks != "none"})


def _wide(config: ConfigJson, attention: Attention, windows: tuple[int | None, ...]) -> Attention:
    """Attention of layers without a window, whose heads have another size in Gemma 4. New files list what differs."""
    has_own_values = not config.flag("attention_k_eq_v")
    head_dim, kv_heads = attention.head_dim, attention.num_kv_heads
    if config.get("per_layer_config") is not None:
        layers = {index for index, window in enumerate(windows) if window is None}
        part = config.part(listed_changes(config.get("per_layer_config"), layers, _BY_LAYER, "without a window"))
        head_dim = part.count("head_dim", head_dim)
        kv_heads = part.count("num_key_value_heads", kv_heads)
    elif config.get("global_head_dim") is not None:
        head_dim = config.count("global_head_dim")
        if not has_own_values:
            kv_heads = config.count("num_global_key_value_heads", kv_heads)
    else:
        return attention
    _check_sharing(attention.num_heads, kv_heads)
    changes = {"head_dim": head_dim, "num_kv_heads": kv_heads, "has_own_values": has_own_values}
    return attention.model_copy(update=changes)


def _of_layer(
    config: ConfigJson, attention: Attention, window: int | None, rope: RopeSpec | None, source: int | None
) -> Attention:
    changes: dict[str, Any] = {
        "window": window,
        "rope": rope,
        "keys_of": source,
        "is_chunked": attention.is_chunked and window is not None,
    }
    if attention.index is not None and rope is not None:
        check_rotation(attention.index, int(attention.head_dim * rope.partial_rotary_factor))
    if rope is None and attention.head_norm == "bare_after_rope":
        changes["head_norm"] = "none"
    if rope is None and config.get("attn_temperature_tuning"):  # in old files a number
        interval, weight = config.number("floor_scale", 1, 1e9), config.number("attn_scale", 0, 100)
        changes["query_growth"] = QueryGrowth(interval=interval, weight=weight)
    return attention.model_copy(update=changes)
