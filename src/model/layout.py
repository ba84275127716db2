"""The parts of each layer: attention, a recurrent state, a feed-forward block, as config.json says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from .config_json import LIMITS, ConfigJson, ModelConfigError, shown
from .recurrent import Kind


class Parts(NamedTuple):
    has_attention: bool = False
    has_state: bool = False
    feed_forward: Literal["by_index", "mlp", "experts", "none"] = "none"  # by_index: experts.py decides


_ATTENTION, _STATE = Parts(has_attention=True, feed_forward="by_index"), Parts(has_state=True, feed_forward="by_index")
_NAMES = {  # in lists of layers, in which newer files have the longer names
    "attention": _ATTENTION,
    "full_attention": _ATTENTION,
    "sliding_attention": _ATTENTION,
    "indexed_attention": _ATTENTION,
    "mamba": _STATE,
    "linear_attention": _STATE,
    "conv": _STATE,
}
_MORE_NAMES: Mapping[Kind, Sequence[str]] = {
    "granite_hybrid": ("attention", "mamba"),
    "lfm3": ("sliding_attention",),
    "qwen4": ("indexed_attention",),
}
_AFTER_BLOCK = Parts(has_attention=True, has_state=True, feed_forward="mlp")
_ALONE = {  # of Nemotron-H, whose layers have one part
    "attention": Parts(has_attention=True),
    "full_attention": Parts(has_attention=True),
    "mamba": Parts(has_state=True),
    "linear_attention": Parts(has_state=True),
    "mlp": Parts(feed_forward="mlp"),
    "moe": Parts(feed_forward="experts"),
}
_LETTERS = {"*": "attention", "M": "mamba", "-": "mlp", "E": "moe"}


def read_layout(config: ConfigJson, kind: Kind) -> list[Parts]:
    """Read the parts of each layer. Raises ModelConfigError for a list of another length, or with an unknown kind."""
    if kind == "nemotron_h":
        return _alone(config)
    num_layers = config.count("num_hidden_layers")
    match kind:
        case "none":
            return [_ATTENTION] * num_layers
        case "falcon_h1":
            return [_ATTENTION._replace(has_state=True)] * num_layers
        case "mamba" | "falcon_mamba" | "mamba2":
            return [Parts(has_state=True)] * num_layers
        case "zamba2":
            return _after_blocks(config, num_layers, (*range(6, 43, 6), 47, 51))
        case "zamba":
            periodic = config.periodic_layers("attn_layer", max(num_layers - 3, 0))
            return _after_blocks(config, num_layers, (2, *(index + 3 for index in periodic)))
        case "rg_lru":
            return _repeated(config, num_layers)
        case "bamba":
            listed = _indices(config, "attn_layer_indices", ())
        case "short_convolution":
            listed = _indices(config, "full_attn_idxs", range(num_layers))
        case "minimax":
            listed = range(0, num_layers, 2)
        case "lfm3":
            listed = range(2, num_layers, 2)
        case "granite_hybrid":
            listed = ()
        case "bailing":
            interval = config.count("layer_group_size")
            listed = range(interval - 1, num_layers, interval)
        case "olmo_hybrid":
            listed = range(3, num_layers, 4) or (num_layers - 1,)
        case "kimi_linear":
            given = config.get("linear_attn_config")
            first_is_one = _indices(config.part(given if isinstance(given, Mapping) else {}), "full_attn_layers", ())
            listed = [index - 1 for index in first_is_one] or range(4, num_layers, 4)
        case "jamba":
            listed = config.periodic_layers("attn_layer", num_layers)
        case _:
            interval = config.count("full_attention_interval")
            listed = range(interval - 1, num_layers, interval)
    own = "conv" if kind in ("short_convolution", "lfm3") else "linear_attention"
    known = ["full_attention", own, *_MORE_NAMES.get(kind, ())]
    names = config.layer_types(num_layers, known)
    if names is None:
        names = ["full_attention" if index in listed else own for index in range(num_layers)]
    return [_NAMES[name] for name in names]


def _indices(config: ConfigJson, key: str, default: Sequence[int]) -> Sequence[int]:
    listed = config.get(key)
    if listed is None:
        return default
    if not isinstance(listed, list) or not all(isinstance(index, int) for index in listed):
        raise ModelConfigError(f"`{key}` must be a list of layers")
    return listed


def _after_blocks(config: ConfigJson, num_layers: int, default: Sequence[int]) -> list[Parts]:
    """Read which layers have a shared block before them; without a list the default."""
    names = config.layer_types(num_layers, ("linear_attention", "mamba", "hybrid"))
    has_block = (
        (index in default for index in range(num_layers)) if names is None else (name == "hybrid" for name in names)
    )
    return [_AFTER_BLOCK if each else Parts(has_state=True) for each in has_block]


def _repeated(config: ConfigJson, num_layers: int) -> list[Parts]:
    """Read a list of kinds that is repeated as often as there are layers for."""
    names = config.get("block_types")
    known = {"recurrent": _STATE, "attention": _ATTENTION}
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name in known for name in names):
        raise ModelConfigError(f"`block_types` is {shown(names)}; it must be a list of {' and '.join(known)}")
    return [known[names[index % len(names)]] for index in range(num_layers)]


def _alone(config: ConfigJson) -> list[Parts]:
    """Read a list of layers, or a letter for each."""
    pattern = config.get("hybrid_override_pattern")
    if "layers_block_type" not in config.values and pattern is not None:
        if not isinstance(pattern, str) or not set(pattern) <= set(_LETTERS):
            letters = " ".join(_LETTERS)
            raise ModelConfigError(f"`hybrid_override_pattern` is {shown(pattern)}; it must be a text of {letters}")
        names = [_LETTERS[letter] for letter in pattern]
    else:
        given = config.get("layers_block_type")
        names = given if isinstance(given, list) else []
    if not 1 <= len(names) <= LIMITS["num_hidden_layers"]:
        most = LIMITS["num_hidden_layers"]
        raise ModelConfigError(f"`layers_block_type` must be a list of 1 to {most} layers")
    if unknown := [name for name in names if not isinstance(name, str) or name not in _ALONE]:
        raise ModelConfigError(f"`layers_block_type` has {shown(unknown[0])}; known: {', '.join(_ALONE)}", "M304")
    return [_ALONE[name] for name in names]
