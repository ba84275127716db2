"""Layers with a recurrent state, as the families that have them write them in config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from .config_json import ConfigJson, ModelConfigError, shown
from .mixers import (
    DeltaForm,
    GateActivation,
    GatedDelta,
    GateNorm,
    KimiDelta,
    LightningAttention,
    Mamba,
    Mamba2,
    PartNorm,
    Recurrent,
    RgLru,
    ShortConvolution,
)

Kind = (
    Literal[
        "none",
        "gated_delta",
        "grouped_gated_delta",
        "qwen4",
        "olmo_hybrid",
        "kimi_linear",
        "bailing",
        "minimax",
        "short_convolution",
        "lfm3",
    ]
    | Literal["bamba", "granite_hybrid", "falcon_h1", "nemotron_h", "mamba2", "zamba2"]
    | Literal["mamba", "falcon_mamba", "jamba", "zamba", "rg_lru"]
)


class _Keys(NamedTuple):
    """Keys of config.json for a Mamba-2 mixer."""

    heads: str
    head_dim: str
    groups: str
    state_size: str
    conv_width: str
    expand: str | None  # the key of the width as a multiple of the hidden size; None: it follows from the heads
    bias: str
    out_bias: str
    conv_bias: str
    activation: str | None = "hidden_act"  # None: silu, whatever config.json says
    min_step: str | None = None  # in place of `time_step_limit`


_BAMBA = _Keys(
    *("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_expand"),
    *("mamba_proj_bias", "mamba_proj_bias", "mamba_conv_bias"),
)
_KEYS: Mapping[Kind, _Keys] = {
    "bamba": _BAMBA,
    "granite_hybrid": _BAMBA,
    "falcon_h1": _BAMBA._replace(out_bias="projectors_bias"),
    "nemotron_h": _Keys(
        *("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel", None),
        *("use_bias", "use_bias", "use_conv_bias", "mamba_hidden_act", "time_step_min"),
    ),
    "mamba2": _Keys(
        *("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel", "expand"),
        *("use_bias", "use_bias", "use_conv_bias"),
    ),
    "zamba2": _Keys(
        *("n_mamba_heads", "mamba_headdim", "mamba_ngroups", "mamba_d_state", "mamba_d_conv", "mamba_expand"),
        *("add_bias_linear", "add_bias_linear", "use_conv_bias", None, "time_step_min"),
    ),
}


class _MambaKeys(NamedTuple):
    """Keys of config.json for a Mamba mixer, and what its code does whatever they say."""

    state_size: str
    conv_width: str
    expand: str
    step_rank: str
    bias: str
    conv_bias: str
    norm: PartNorm = "none"
    norm_eps: str = "rms_norm_eps"
    activation: str = "hidden_act"
    heads: str | None = None


_MAMBA = _MambaKeys("state_size", "conv_kernel", "expand", "time_step_rank", "use_bias", "use_conv_bias")
_MAMBA_KEYS: Mapping[Kind, _MambaKeys] = {
    "mamba": _MAMBA,
    "falcon_mamba": _MAMBA._replace(norm="bare", norm_eps="mixer_rms_eps"),
    "jamba": _MambaKeys(
        *("mamba_d_state", "mamba_d_conv", "mamba_expand", "mamba_dt_rank", "mamba_proj_bias", "mamba_conv_bias"),
        norm="weighted",
    ),
    "zamba": _MambaKeys(
        *("mamba_d_state", "mamba_d_conv", "mamba_expand", "mamba_dt_rank", "mamba_proj_bias", "mamba_conv_bias"),
        activation="hidden_mamba_act",
        heads="n_mamba_heads",
    ),
}


def read_state(config: ConfigJson, kind: Kind) -> Recurrent | None:
    """The mixer of the layers with a state. Raises ModelConfigError for numbers that contradict each other."""
    match kind:
        case "none":
            return None
        case "gated_delta":
            return _gated_delta(config, "by_part")
        case "grouped_gated_delta":
            return _gated_delta(config, "by_key_head")
        case "qwen4":
            return _gated_delta(config, "by_part").model_copy(update={"gate": _gate_activation(config)})
        case "olmo_hybrid":
            return _olmo_hybrid(config)
        case "kimi_linear":
            return _kimi_linear(config)
        case "bailing":
            return _bailing(config)
        case "minimax":
            heads = config.count("num_attention_heads")
            return LightningAttention(
                num_heads=heads, head_dim=config.count("head_dim", config.count("hidden_size") // heads)
            )
        case "rg_lru":
            return _rg_lru(config)
        case "short_convolution" | "lfm3":
            return _short_convolution(config)
        case "mamba" | "falcon_mamba" | "jamba" | "zamba":
            return _mamba(config, kind, _MAMBA_KEYS[kind])
        case _:
            return _mamba2(config, kind, _KEYS[kind])


def of_layer(state: Recurrent, index: int, num_layers: int) -> Recurrent:
    """The mixer of one layer. The rates of lightning attention fall with the layers."""
    if not isinstance(state, LightningAttention):
        return state
    return state.model_copy(update={"slope_scale": 1 - index / (num_layers - 1 + 1e-5) + 1e-5})


def _gated_delta(config: ConfigJson, form: DeltaForm) -> GatedDelta:
    key_heads, value_heads = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    if value_heads % key_heads:
        raise ModelConfigError(f"{value_heads} value heads cannot share {key_heads} key heads evenly")
    return GatedDelta(
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_dim=config.count("linear_key_head_dim"),
        value_dim=config.count("linear_value_head_dim"),
        conv_width=_conv_width(config, "linear_conv_kernel_dim"),
        form=form,
    )


def _gate_activation(config: ConfigJson) -> GateActivation:
    given = config.get("output_gate_type") or config.get("hidden_act")
    if given in ("silu", "sigmoid"):
        return given  # type: ignore[no-any-return]
    raise ModelConfigError(f"`output_gate_type` is {shown(given)}; it must be `silu` or `sigmoid`", "M304")


def _olmo_hybrid(config: ConfigJson) -> GatedDelta:
    heads = config.count("num_attention_heads")
    key_heads = config.count("linear_num_key_heads", heads)
    key_dim = config.count("linear_key_head_dim", 3 * config.count("hidden_size") // (4 * key_heads))
    sizes = {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": config.count("linear_num_value_heads", heads),
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": config.count("linear_value_head_dim", 2 * key_dim),
        "linear_conv_kernel_dim": config.get("linear_conv_kernel_dim"),
    }
    found = _gated_delta(config.part(sizes), "one_by_one")
    scale = 2.0 if config.flag("linear_allow_neg_eigval") else 1.0
    return found.model_copy(update={"beta_scale": scale, "norm_eps": 1e-5})


def _kimi_linear(config: ConfigJson) -> KimiDelta:
    """Read from the object that published files have, or the keys that transformers writes in its place."""
    given = config.get("linear_attn_config")
    if isinstance(given, Mapping):
        part, prefix, width = config.part(given), "", "short_conv_kernel_size"
    else:
        part, prefix, width = config, "linear_", "linear_conv_kernel_dim"
    size = part.count(f"{prefix}head_dim")
    return KimiDelta(
        num_heads=part.count(f"{prefix}num_heads"), head_dim=size, rank=size, conv_width=_conv_width(part, width)
    )


def _bailing(config: ConfigJson) -> KimiDelta:
    """Read the sizes of attention's heads. transformers writes another `head_dim`, and the right one beside it."""
    least = config.get("kda_lower_bound") if config.flag("kda_safe_gate") else None
    if least is not None and not -1e3 <= _float(least) < 0:
        raise ModelConfigError(f"`kda_lower_bound` is {shown(least)}; it must be a negative number")
    return KimiDelta(
        num_heads=config.count("num_attention_heads"),
        head_dim=config.count("linear_head_dim", config.count("head_dim")),
        rank=0,
        conv_width=_conv_width(config, "short_conv_kernel_size"),
        least_log=None if least is None else _float(least),
    )


def _rg_lru(config: ConfigJson) -> RgLru:
    heads, width = config.count("num_attention_heads"), config.count("lru_width", config.count("hidden_size"))
    if width % heads:
        raise ModelConfigError(f"`lru_width` {width} is no multiple of `num_attention_heads` {heads}")
    return RgLru(
        num_heads=heads,
        head_dim=width // heads,
        conv_width=_conv_width(config, "conv1d_width"),
        activation=config.name("hidden_activation"),
    )


def _short_convolution(config: ConfigJson) -> ShortConvolution:
    return ShortConvolution(
        width=config.count("hidden_size"),
        conv_width=_conv_width(config, "conv_L_cache"),
        has_bias=config.flag("conv_bias"),
    )


def _mamba2(config: ConfigJson, kind: Kind, keys: _Keys) -> Mamba2:
    if keys.activation is not None:
        _check_activation(config, keys.activation, "Mamba-2")
    heads, groups = config.count(keys.heads), config.count(keys.groups)
    if heads % groups:
        raise ModelConfigError(f"{heads} heads cannot share {groups} groups evenly")
    least, most = _step_limits(config)
    if keys.min_step is not None:
        least, most = config.number(keys.min_step, 0, 1e3), None
    return Mamba2(
        num_heads=heads,
        head_dim=_head_dim(config, keys, heads),
        num_groups=groups,
        state_size=config.count(keys.state_size),
        conv_width=_conv_width(config, keys.conv_width),
        has_bias=config.flag(keys.bias),
        has_out_bias=config.flag(keys.out_bias),
        has_conv_bias=config.flag(keys.conv_bias),
        norm=_gate_norm(config) if kind == "falcon_h1" else "after_gate",
        norm_eps=1e-5 if kind == "zamba2" else None,
        min_step=least,
        max_step=most,
    )


def _mamba(config: ConfigJson, kind: Kind, keys: _MambaKeys) -> Mamba:
    _check_activation(config, keys.activation, "Mamba")
    hidden = config.count("hidden_size")
    width = hidden * config.count(keys.expand)
    # Files of Falcon Mamba have a width that contradicts `expand`, and the width of the tensors.
    if kind not in ("jamba", "zamba"):
        width = config.count("intermediate_size", width)
    heads = None if keys.heads is None else config.count(keys.heads)
    if width % (heads or 1):
        raise ModelConfigError(f"{width} channels of a state cannot be divided into {heads} heads")
    is_given = config.get(keys.step_rank) not in (None, "auto")
    return Mamba(
        width=width,
        state_size=config.count(keys.state_size),
        conv_width=_conv_width(config, keys.conv_width),
        step_rank=config.count(keys.step_rank) if is_given else -(-hidden // 16),
        has_bias=config.flag(keys.bias),
        has_conv_bias=config.flag(keys.conv_bias),
        norm=keys.norm,
        norm_eps=1e-6 if keys.norm == "none" else config.number(keys.norm_eps, 0, 1),
        num_heads=heads,
    )


def _check_activation(config: ConfigJson, key: str, layers: str) -> None:
    if (activation := config.get(key)) not in ("silu", "swish"):
        raise ModelConfigError(f"`{key}` is {shown(activation)}; {layers} layers need silu", "M304")


def _head_dim(config: ConfigJson, keys: _Keys, heads: int) -> int:
    if keys.expand is None:
        return config.count(keys.head_dim)
    width = config.count("hidden_size") * config.count(keys.expand)
    if config.get("mamba_d_ssm") is not None:
        width = config.count("mamba_d_ssm")
    head_dim = width // heads if config.get(keys.head_dim) == "auto" else config.count(keys.head_dim)
    if heads * head_dim != width:
        raise ModelConfigError(f"{heads} heads of {head_dim} channels are not the {width} channels of a state")
    return head_dim


def _gate_norm(config: ConfigJson) -> GateNorm:
    if not config.flag("mamba_rms_norm"):
        return "none"
    return "before_gate" if config.flag("mamba_norm_before_gate") else "after_gate"


def _step_limits(config: ConfigJson) -> tuple[float, float | None]:
    """The least and the greatest time step; None for infinity."""
    written = config.get("time_step_limit")
    if written is None:
        return 0.0, None
    if not isinstance(written, list) or len(written) != 2:
        raise ModelConfigError(f"`time_step_limit` is {shown(written)}; it must be a list of two numbers")
    least, most = map(_float, written)
    if not 0 <= least <= most or math.isinf(least):
        raise ModelConfigError(f"`time_step_limit` is {shown(written)}; it must be a list of two ascending numbers")
    return least, None if math.isinf(most) else most


def _float(value: Any) -> float:
    """NaN for other values than numbers. transformers writes infinity as an object."""
    if isinstance(value, Mapping):
        value = {"Infinity": math.inf}.get(str(value.get("__float__")), math.nan)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value) if abs(value) <= 1e300 else math.inf


def _conv_width(config: ConfigJson, key: str) -> int:
    width = config.count(key)
    if not 2 <= width <= 64:
        raise ModelConfigError(f"`{key}` is {width}; it must be a number of tokens from 2 to 64")
    return width


def adjusted_width(config: ConfigJson) -> int:
    """Width of LFM2's feed-forward blocks: two thirds of what is written, in whole multiples, if a flag is set."""
    width = config.count("block_ff_dim", config.count("intermediate_size"))
    if not config.flag("block_auto_adjust_ff_dim"):
        return width
    width = 2 * width // 3
    if config.get("block_ffn_dim_multiplier") is None:
        return width
    multiple = config.count("block_multiple_of")
    return -(-int(config.number("block_ffn_dim_multiplier", 0, 1e3) * width) // multiple) * multiple
