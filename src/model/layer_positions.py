"""Sliding windows and rotary embeddings of attention, layer by layer.

What comes in is config.json and the family; what goes out has one entry for each layer. For a model of four layers in
which every second one has a window of 1024 tokens:

    read_windows -> (1024, None, 1024, None)
    read_ropes   -> (local, full, local, full), each a RopeSpec, or None where queries and keys are not rotated
"""

from __future__ import annotations

from typing import Any

from .config_json import ConfigJson, ModelConfigError, shown
from .families import Family
from .mixers import RopeSpec
from .rope import WINDOW, has_kinds, read_rope, read_theta

_LAYER_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "conv")


def read_windows(config: ConfigJson, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """The sliding window of each layer."""
    everything = (None,) * num_layers
    size = {"chunks": "attention_chunk_size", "all_but_each_global": "local_attention"}.get(
        str(family.windows), "sliding_window"
    )
    if family.windows == "none" or config.get(size) is None:
        return everything
    if family.window_if is not None and not config.flag(family.window_if):
        return everything
    window = config.count(size)
    if family.windows == "all_but_each_global" or config.get("use_bidirectional_attention") is True:
        window //= 2  # on each side
    if config.get("sliding_window_size") is not None:  # of MiMo, without the token itself
        window = config.count("sliding_window_size") + 1
    if family.windows == "all":
        return (window,) * num_layers
    kinds = config.layer_types(num_layers, _LAYER_KINDS)
    if kinds is None:
        return tuple(window if has_one else None for has_one in _has_window(config, family, num_layers))
    return tuple(None if kind == "full_attention" else window for kind in kinds)


def _has_window(config: ConfigJson, family: Family, num_layers: int) -> list[bool]:
    """Whether each layer has a window, where `layer_types` is missing."""
    if family.windows == "chunks":
        return _rotates(config, family, (None,) * num_layers)
    if family.windows == "last":
        first = config.get("max_window_layers")
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise ModelConfigError(f"`max_window_layers` is {shown(first)}; it must be a number of layers")
        return [index >= first for index in range(num_layers)]
    if family.windows == "all_but_each_global":
        each = config.count("global_attn_every_n_layers", 3)
        return [index % each != 0 for index in range(num_layers)]
    if family.windows == "all_but_each_fourth":
        return [index % 4 != 0 for index in range(num_layers)]
    if family.windows == "each_fourth":
        return [index % 4 == 0 for index in range(num_layers)]
    if family.windows == "hybrid_layer_pattern":
        return _hybrid(config.get("hybrid_layer_pattern"), num_layers)
    if family.windows == "attention_types":
        return _local(config.get("attention_types"), num_layers)
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern and set(pattern) <= set("LG"):  # EXAONE 4: local and global
        return [pattern[index % len(pattern)] == "L" for index in range(num_layers)]
    assert isinstance(family.windows, int)
    period = config.count("sliding_window_pattern", family.windows)
    first = _num_dense(config)
    return [index >= first and (index - first + 1) % period != 0 for index in range(num_layers)]


def _num_dense(config: ConfigJson) -> int:
    """First layers that are not counted in a pattern of windows, and see everything (Cohere)."""
    if config.get("prefix_dense_sliding_window_pattern") is None or not config.get("first_k_dense_replace"):
        return 0
    return config.count("first_k_dense_replace")


def _hybrid(pattern: Any, num_layers: int) -> list[bool]:
    """Read which layers have a window; without a list all but the first and every sixth (MiMo)."""
    if pattern is None:
        return [index != 0 and (index + 1) % 6 != 0 for index in range(num_layers)]
    if not isinstance(pattern, list) or len(pattern) != num_layers or not set(map(str, pattern)) <= {"0", "1"}:
        raise ModelConfigError(f"`hybrid_layer_pattern` must be a list of {num_layers} numbers, each 0 or 1")
    return [bool(value) for value in pattern]


def _local(types: Any, num_layers: int) -> list[bool]:
    """Read which layers are local. types: lists of kinds, and how often each list is repeated."""
    try:
        kinds = [kind for names, count in types for kind in names * min(count, num_layers)]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != num_layers or not set(kinds) <= {"global", "local"}:
        raise ModelConfigError(f"`attention_types` must say `global` or `local` of each of {num_layers} layers")
    return [kind == "local" for kind in kinds]


def read_ropes(
    config: ConfigJson, family: Family, head_dim: int, wide_dim: int, windows: tuple[int | None, ...]
) -> tuple[RopeSpec | None, ...]:
    """The rotary embedding of each layer; None where queries and keys are not rotated.

    wide_dim: elements of a head in layers without a window.
    """
    full, local = _full_and_local(config, family, head_dim, wide_dim)
    num_layers = len(windows)
    if family.rope_layers == "layer_rope_theta" and config.get("layer_rope_theta") is not None:
        thetas = _thetas(config, num_layers)
        return tuple(full.model_copy(update={"theta": theta}) if theta else None for theta in thetas)
    ropes: list[RopeSpec | None] = [full if window is None else local for window in windows]
    for index, rotates in enumerate(_rotates(config, family, windows)):
        if not rotates:
            ropes[index] = None
    return tuple(ropes)


def _full_and_local(config: ConfigJson, family: Family, head_dim: int, wide_dim: int) -> tuple[RopeSpec, RopeSpec]:
    """The rotary embedding of layers without a window, and of layers with one."""
    partial = 1.0
    if not isinstance(family.partial, str):
        partial = family.partial
    elif config.get(family.partial) is not None:
        partial = config.count(family.partial) / head_dim
    full = local = read_rope(config, wide_dim, partial=partial, has_mscales=family.has_rope_mscales)
    if has_kinds(config):
        local = read_rope(config, head_dim, WINDOW, partial=partial)
    elif family.window_rope == "unscaled":
        local = RopeSpec(theta=full.theta, partial_rotary_factor=full.partial_rotary_factor)
    elif family.window_rope == "local":
        theta = config.number("rope_local_base_freq", 1, 1e15)
        local = RopeSpec(theta=theta, partial_rotary_factor=full.partial_rotary_factor)
    if family.is_interleaved:
        full, local = (rope.model_copy(update={"is_interleaved": True}) for rope in (full, local))
    return full, local


def _thetas(config: ConfigJson, num_layers: int) -> list[float]:
    """The base of each layer's rotary embedding; 0 for a layer without one."""
    listed = config.get("layer_rope_theta")
    if not isinstance(listed, list) or len(listed) != num_layers:
        raise ModelConfigError(f"`layer_rope_theta` must be a list of {num_layers} numbers")
    return [0.0 if base == 0 else read_theta(config.part({"rope_theta": base})) for base in listed]


def _rotates(config: ConfigJson, family: Family, windows: tuple[int | None, ...]) -> list[bool]:
    """Whether each layer rotates queries and keys."""
    match family.rope_layers:
        case "none":
            return [False] * len(windows)
        case "not_alibi":
            return [not config.flag("alibi")] * len(windows)
        case "position_embedding_type":
            return [config.get("position_embedding_type") == "rope"] * len(windows)
        case "rope_parameters":
            return [config.get("rope_parameters") is not None] * len(windows)
        case "use_mem_rope":
            return [config.flag("use_mem_rope")] * len(windows)
        case "windows":
            return [window is not None for window in windows]
        case "windows_if_any":
            return [window is not None or not any(windows) for window in windows]
        case "listed":
            return _listed(config, len(windows))
        case _:
            return [True] * len(windows)


def _listed(config: ConfigJson, num_layers: int) -> list[bool]:
    """What `no_rope_layers` says, which has 0 for layers that do not rotate."""
    listed = config.get("no_rope_layers")
    if not listed:
        period = config.count("no_rope_layer_interval", 4)
        return [(index + 1) % period != 0 for index in range(num_layers)]
    if not isinstance(listed, list) or len(listed) != num_layers or not set(map(str, listed)) <= {"0", "1"}:
        raise ModelConfigError(f"`no_rope_layers` must be a list of {num_layers} numbers, each 0 or 1")
    return [bool(value) for value in listed]
