"""ModelSpec from config.json: strictly for the families that are known (families/), else by guess.py.

Defaults for keys that config.json leaves out come from the transformers library, per family. Both spellings of its
releases are read: `dtype` and `torch_dtype`, `rope_parameters` and `rope_theta` with `rope_scaling`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .config_json import ConfigJson, ModelConfigError, shown
from .experts import read_experts
from .families import FAMILIES, Family, Setting
from .feed_forwards import MLP, Experts
from .guess import guess, named_dtype
from .latent import read_latent
from .layout import read_layout
from .mixers import Attention, HeadNorm, LatentAttention, Mixer, QueryGrowth, RopeSpec
from .multipliers import read_weight_scales
from .quantisation_config import read_quantisation
from .recurrent import adjusted_width, read_state
from .rope import has_kinds, read_rope, read_theta
from .spec import LayerInput, LayerSpec, ModelSpec, NormPlaces, WeightScale

_LAYER_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "conv")
_OFTEN_READ = {"architectures", "dtype", "torch_dtype", "quantization_config"}
_MAX_SCALE = 1e6
_BY_LAYER = {"head_dim", "num_key_value_heads"}


def read_config(values: Mapping[str, Any]) -> tuple[ModelSpec, ConfigJson]:
    """The model that config.json describes, and its language model's part of the file with the family's defaults.

    Raises ModelConfigError if it is malformed or absurd.
    """
    config, name = config_json(values), _architecture(values)
    if name is None:
        return guess(values), config
    config.read |= _OFTEN_READ
    return _read(config, values, name, FAMILIES[name]), config


def config_json(values: Mapping[str, Any]) -> ConfigJson:
    """The language model's part of the file, with the defaults and the names of keys of its family, if it is known."""
    name = _architecture(values)
    if name is None:
        return ConfigJson(values)
    family = FAMILIES[name]
    text = values if family.text_in is None else _text_part(values, family.text_in)
    return ConfigJson(text, family.defaults, family.own_keys)


def _architecture(values: Mapping[str, Any]) -> str | None:
    """Architecture of the model; None if its family is not known."""
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    return name if isinstance(name, str) and name in FAMILIES else None


def _text_part(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The language model's keys; of the whole model, keys that it does not have, and whether embeddings are tied."""
    inner = values.get(key, {})
    if not isinstance(inner, Mapping):
        raise ModelConfigError(f"`{key}` must be an object: the language model's configuration")
    ropes = "rope_scaling", "rope_parameters"
    own = {name: value for name, value in values.items() if name in ropes or not isinstance(value, Mapping)}
    tied = {name: values[name] for name in ("tie_word_embeddings",) if name in values}
    return {**own, **inner, **tied}


def _read(config: ConfigJson, whole: Mapping[str, Any], name: str, family: Family) -> ModelSpec:
    hidden, layout = config.count("hidden_size"), read_layout(config, family.states)
    num_layers = len(layout)
    windows = _windows(config, family, num_layers)
    attentions: Sequence[Attention | LatentAttention] = ()
    if family.is_latent:
        forms = {"has_rope": family.rope_layers != "none", "has_gate": family.gate == "head"}
        attentions = read_latent(config, family.index, num_layers, **forms)
    elif any(parts.has_attention for parts in layout):
        attentions = _attentions(config, family, hidden, windows)
    norms, own_input = _norm_places(config, family), _layer_input(config, family)
    state = read_state(config, family.states)
    mlp = _mlp(config, family, hidden) if any(parts.feed_forward != "none" for parts in layout) else None
    wide_mlp = mlp and mlp.model_copy(update={"width": 2 * mlp.width})
    layers: dict[Any, LayerSpec] = {}  # equal layers are one object

    def layer(index: int) -> LayerSpec:
        parts, experts, mixers = layout[index], None, list[Mixer]()
        if parts.has_attention:
            mixers.append(attentions[index])
        if parts.has_state and state is not None:
            mixers.append(state)
        if parts.feed_forward in ("by_index", "experts"):
            experts = read_experts(config, family.experts, index)
        mixer, beside, *_ = (*mixers, None, None)
        feed_forward = None if parts.feed_forward == "none" else experts or mlp
        if isinstance(mixer, Attention) and mixer.keys_of is not None and config.flag("use_double_wide_mlp"):
            feed_forward = wide_mlp if feed_forward is mlp else feed_forward
        key = mixer, beside, feed_forward
        if key not in layers:
            layers[key] = LayerSpec(
                mixer=mixer,
                beside=beside,
                feed_forward=feed_forward,
                norms=norms,
                input=own_input,
                has_scalar=family.has_layer_scalars,
            )
        return layers[key]

    return ModelSpec(
        architecture=name,
        model_type=family.model_type,
        hidden_size=hidden,
        vocab_size=config.count("vocab_size"),
        max_position_embeddings=config.count("max_position_embeddings"),
        is_tied=config.flag("tie_embedding", config.flag("tie_word_embeddings")),
        has_position_table=family.position_offset is not None,
        position_offset=family.position_offset or 0,
        has_embedding_norm=family.has_embedding_norm,
        has_output_bias=family.has_output_bias,
        norm=family.norm.model_copy(update={"eps": config.number(family.eps_key, 0, 1)}),
        layers=tuple(layer(index) for index in range(num_layers)),
        rounds_embedding_scale=family.scales_embedding,
        weight_scales=read_weight_scales(config, layer(0), hidden)
        if family.has_weight_scales
        else _router_scale(layer(0), hidden),
        embedding_scale=hidden**0.5 if family.scales_embedding else _multiplier(config, family, "embedding_scale"),
        residual_scale=_residual_scale(config, family, num_layers),
        logits_scale=_logits_scale(config, family, hidden),
        logits_softcap=_limit(config, family, "logits_softcap"),
        dtype=named_dtype(whole, config.values),
        quantization=read_quantisation(whole, config.values),
        is_part=family.text_in is not None,
        unsupported=tuple(_unsupported(config, family)),
    )


def _router_scale(layer: LayerSpec, hidden: int) -> tuple[WeightScale, ...]:
    """The inputs of Gemma 4's router are divided by the root of their number: the weights of their norm are."""
    experts = layer.feed_forward
    if not isinstance(experts, Experts) or not experts.has_router_norm:
        return ()
    return (WeightScale(name="mlp.gate.norm.weight", parts=((hidden, hidden**-0.5),)),)


def _norm_places(config: ConfigJson, family: Family) -> NormPlaces:
    if config.flag("new_decoder_architecture"):  # Falcon 40B and later
        return "parallel" if config.count("num_ln_in_parallel_attn", 2) == 2 else "common"
    if family.parallel_if is not None and config.flag(family.parallel_if):
        return family.parallel_norms
    return family.norms


def _unsupported(config: ConfigJson, family: Family) -> Iterator[str]:
    others = {key: config.get(other) for key, other in family.equal_keys.items()}
    for key, needed in {**others, **family.fixed}.items():
        name, _, inner = key.partition(".")
        found = config.get(name)
        if inner:
            found = found.get(inner) if isinstance(found, Mapping) else None
        if found is not None and found != needed:
            yield f"`{key}` is {shown(found)}; supported: {shown(needed)}"


def _attentions(config: ConfigJson, family: Family, hidden: int, windows: tuple[int | None, ...]) -> list[Attention]:
    """Attention of each layer."""
    attention = _attention(config, family, hidden)
    wide = _wide(config, attention, windows)
    ropes = _ropes(config, family, attention.head_dim, wide.head_dim, windows)
    sources = _sources(config, family, windows)
    return [
        _of_layer(config, wide if window is None else attention, window, rope, source)
        for window, rope, source in zip(windows, ropes, sources, strict=True)
    ]


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


def _layer_input(config: ConfigJson, family: Family) -> LayerInput | None:
    if not family.has_layer_inputs or not config.get("hidden_size_per_layer_input"):
        return None
    return LayerInput(
        width=config.count("hidden_size_per_layer_input"),
        vocab_size=config.count("vocab_size_per_layer_input"),
        activation=config.name(family.activation_key),
    )


def _mlp(config: ConfigJson, family: Family, hidden: int) -> MLP:
    is_adjusted = family.model_type == "lfm2"
    return MLP(
        width=adjusted_width(config) if is_adjusted else config.count(family.mlp_width_key, 4 * hidden),
        activation=config.name(family.activation_key),
        is_gated=family.is_gated,
        has_bias=_flag(config, family.mlp_bias),
    )


def _attention(config: ConfigJson, family: Family, hidden: int) -> Attention:
    """Attention without windows and positions."""
    heads = config.count("num_attention_heads")
    kv_heads = _kv_heads(config, family, heads)
    _check_sharing(heads, kv_heads)
    if config.get("head_dim") is None and hidden % heads:
        raise ModelConfigError(f"`hidden_size` {hidden} is no multiple of `num_attention_heads` {heads}")
    head_dim = config.count("head_dim", hidden // heads)
    if head_dim % 2:
        raise ModelConfigError(f"`head_dim` is {head_dim}; rotary embedding needs an even one")
    has_norm = family.head_norm_if is None or config.flag(family.head_norm_if)
    head_norm: HeadNorm = family.head_norm if has_norm else "none"
    scale = family.scale
    if "query_pre_attn_scalar" in family.defaults:
        scale = config.number("query_pre_attn_scalar", 0, _MAX_SCALE) ** -0.5
    elif "scale" in family.multipliers:
        scale = _limit(config, family, "scale")
    elif family.has_value_norm:  # normed queries and keys of Gemma 4
        scale = 1.0
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        has_bias=_flag(config, family.bias),
        has_out_bias=_flag(config, family.out_bias),
        head_norm=head_norm,
        scale=scale,
        softcap=_limit(config, family, "softcap"),
        has_sinks=family.has_sinks,
        gate=family.gate if family.gate_if is None or config.flag(family.gate_if) else "none",
        has_value_norm=family.has_value_norm,
        is_chunked=family.windows == "chunks",
        alibi=family.alibi if config.flag("alibi", family.rope_layers == "none") else "none",
        is_grouped=family.is_grouped,
    )


def _check_sharing(heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        raise ModelConfigError(f"{heads} attention heads cannot share {kv_heads} key-value heads evenly")


def _wide(config: ConfigJson, attention: Attention, windows: tuple[int | None, ...]) -> Attention:
    """Attention of layers without a window, whose heads have another size in Gemma 4. New files list what differs."""
    listed, has_own_values = config.get("per_layer_config"), not config.flag("attention_k_eq_v")
    if listed is not None:
        is_wide = {index for index, window in enumerate(windows) if window is None}
        # transformers pads the numbers with zeros, so that they are sorted: '02', '11'.
        indices = {int(key) for key in listed if str(key).isdecimal()} if isinstance(listed, Mapping) else set()
        own = list(listed.values()) if indices == is_wide and len(listed) == len(is_wide) else []
        if (
            not own
            or not isinstance(own[0], Mapping)
            or any(each != own[0] for each in own)
            or own[0].keys() - _BY_LAYER
        ):
            raise ModelConfigError(
                f"`per_layer_config` is supported for {' and '.join(sorted(_BY_LAYER))} of all layers without a window",
                "M304",
            )
        part = config.part(own[0])
        head_dim = part.count("head_dim", attention.head_dim)
        kv_heads = part.count("num_key_value_heads", attention.num_kv_heads)
    elif config.get("global_head_dim") is not None:
        head_dim, kv_heads = config.count("global_head_dim"), attention.num_kv_heads
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
    if rope is None and attention.head_norm == "bare_after_rope":
        changes["head_norm"] = "none"
    if rope is None and config.get("attn_temperature_tuning"):  # in old files a number
        interval, weight = config.number("floor_scale", 1, 1e9), config.number("attn_scale", 0, 100)
        changes["query_growth"] = QueryGrowth(interval=interval, weight=weight)
    return attention.model_copy(update=changes)


def _kv_heads(config: ConfigJson, family: Family, heads: int) -> int:
    is_new = config.flag("new_decoder_architecture")  # Falcon 40B and later
    if family.one_key_if is not None and config.flag(family.one_key_if) and not is_new:
        return 1
    return config.count("num_key_value_heads", heads)


def _flag(config: ConfigJson, setting: Setting) -> bool:
    return config.flag(setting) if isinstance(setting, str) else setting


def _multiplier(config: ConfigJson, family: Family, name: str) -> float:
    key = family.multipliers.get(name)
    return 1.0 if key is None else config.number(key, 0, _MAX_SCALE, 1.0)


def _residual_scale(config: ConfigJson, family: Family, num_layers: int) -> float:
    if family.has_depth_scale and config.get("scale_depth") is not None:
        return config.number("scale_depth", 0, _MAX_SCALE) / math.sqrt(num_layers)
    return _multiplier(config, family, "residual_scale")


def _logits_scale(config: ConfigJson, family: Family, hidden: int) -> float:
    if family.has_depth_scale and config.get("dim_model_base") is not None:
        return config.count("dim_model_base") / hidden
    return _multiplier(config, family, "logits_scale") / _multiplier(config, family, "logits_divisor")


def _limit(config: ConfigJson, family: Family, name: str) -> float | None:
    key = family.multipliers.get(name)
    return None if key is None or config.get(key) is None else config.number(key, 0, _MAX_SCALE)


def _windows(config: ConfigJson, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """The sliding window of each layer."""
    everything = (None,) * num_layers
    size = "attention_chunk_size" if family.windows == "chunks" else "sliding_window"
    if family.windows == "none" or config.get(size) is None:
        return everything
    if family.window_if is not None and not config.flag(family.window_if):
        return everything
    window = config.count(size)
    if family.windows == "all":
        return (window,) * num_layers
    kinds = config.layer_types(num_layers, _LAYER_KINDS)
    if kinds is None:
        return tuple(window if has_one else None for has_one in _has_window(config, family, num_layers))
    return tuple(None if kind == "full_attention" else window for kind in kinds)


def _has_window(config: ConfigJson, family: Family, num_layers: int) -> list[bool]:
    """Whether each layer has a window, where `layer_types` is missing."""
    if family.windows == "chunks":
        return _turned(config, family, (None,) * num_layers)
    if family.windows == "last":
        first = config.get("max_window_layers")
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise ModelConfigError(f"`max_window_layers` is {shown(first)}; it must be a number of layers")
        return [index >= first for index in range(num_layers)]
    if family.windows == "all_but_each_fourth":
        return [index % 4 != 0 for index in range(num_layers)]
    if family.windows == "each_fourth":
        return [index % 4 == 0 for index in range(num_layers)]
    if family.windows == "attention_types":
        return _local(config.get("attention_types"), num_layers)
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern and set(pattern) <= set("LG"):  # EXAONE 4: local and global
        return [pattern[index % len(pattern)] == "L" for index in range(num_layers)]
    assert isinstance(family.windows, int)
    period = config.count("sliding_window_pattern", family.windows)
    return [(index + 1) % period != 0 for index in range(num_layers)]


def _local(types: Any, num_layers: int) -> list[bool]:
    """Read which layers are local. types: lists of kinds, and how often each list is repeated."""
    try:
        kinds = [kind for names, count in types for kind in names * min(count, num_layers)]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != num_layers or not set(kinds) <= {"global", "local"}:
        raise ModelConfigError(f"`attention_types` must say `global` or `local` of each of {num_layers} layers")
    return [kind == "local" for kind in kinds]


def _ropes(
    config: ConfigJson, family: Family, head_dim: int, wide_dim: int, windows: tuple[int | None, ...]
) -> tuple[RopeSpec | None, ...]:
    """The rotary embedding of each layer; None where queries and keys are not turned.

    wide_dim: elements of a head in layers without a window.
    """
    partial = 1.0
    if not isinstance(family.partial, str):
        partial = family.partial
    elif config.get(family.partial) is not None:
        partial = config.count(family.partial) / head_dim
    full = read_rope(config, wide_dim, partial=partial)
    local = full
    if has_kinds(config):
        local = read_rope(config, head_dim, "sliding_attention", partial=partial)
    elif family.window_rope == "unscaled":
        local = RopeSpec(theta=full.theta, partial_rotary_factor=full.partial_rotary_factor)
    elif family.window_rope == "local":
        theta = config.number("rope_local_base_freq", 1, 1e15)
        local = RopeSpec(theta=theta, partial_rotary_factor=full.partial_rotary_factor)
    if family.is_interleaved:
        full, local = (rope.model_copy(update={"is_interleaved": True}) for rope in (full, local))
    if family.rope_layers == "layer_rope_theta" and config.get("layer_rope_theta") is not None:
        return tuple(
            full.model_copy(update={"theta": theta}) if theta else None for theta in _thetas(config, len(windows))
        )
    is_turned = _turned(config, family, windows)
    return tuple(
        (full if window is None else local) if turned else None
        for window, turned in zip(windows, is_turned, strict=True)
    )


def _thetas(config: ConfigJson, num_layers: int) -> list[float]:
    """The base of each layer's rotary embedding; 0 for a layer without one."""
    listed = config.get("layer_rope_theta")
    if not isinstance(listed, list) or len(listed) != num_layers:
        raise ModelConfigError(f"`layer_rope_theta` must be a list of {num_layers} numbers")
    return [0.0 if base == 0 else read_theta(config.part({"rope_theta": base})) for base in listed]


def _turned(config: ConfigJson, family: Family, windows: tuple[int | None, ...]) -> list[bool]:
    """Whether each layer rotates queries and keys."""
    match family.rope_layers:
        case "none":
            return [False] * len(windows)
        case "not_alibi":
            return [not config.flag("alibi")] * len(windows)
        case "position_embedding_type":
            return [config.get("position_embedding_type") == "rope"] * len(windows)
        case "windows":
            return [window is not None for window in windows]
        case "windows_if_any":
            return [window is not None or not any(windows) for window in windows]
        case "listed":
            listed = config.get("no_rope_layers")
            if not listed:
                period = config.count("no_rope_layer_interval", 4)
                return [(index + 1) % period != 0 for index in range(len(windows))]
            if not isinstance(listed, list) or len(listed) != len(windows) or not set(map(str, listed)) <= {"0", "1"}:
                raise ModelConfigError(f"`no_rope_layers` must be a list of {len(windows)} numbers, each 0 or 1")
            return [bool(value) for value in listed]
        case _:
            return [True] * len(windows)
