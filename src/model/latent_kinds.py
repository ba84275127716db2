"""Latent attention whose sizes depend on the kind of layer (Dots 3).

Layers with a sliding window have heads and latents of other sizes than the others, of which some have an index that
chooses the tokens of attention. Newer files list what differs in `per_layer_config`; older ones have keys that begin
with `swa_`. All layers keep as many elements of each token as the widest, so that any block of the cache serves any
layer; attention reads only its own elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .config_json import ConfigJson, ModelConfigError
from .latent import Index, read_latent
from .mixers import LatentAttention
from .per_layer_config import listed_changes
from .rope import FULL, WINDOW, has_kinds

_INDEXED = "indexed_attention"
_KINDS = (FULL, _INDEXED, WINDOW)
_SIZES = (
    "num_attention_heads",
    "num_key_value_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)


def read_latent_kinds(config: ConfigJson, num_layers: int) -> tuple[LatentAttention, ...]:
    """Read the attention of each layer. Raises ModelConfigError for numbers that contradict each other."""
    kinds = _kinds(config, num_layers)
    parts = {kind: _part(config, kind, kinds) for kind in dict.fromkeys(kinds)}
    found = {kind: _attention(part, kind) for kind, part in parts.items()}
    if WINDOW in found:
        window = config.count("sliding_window", config.count("sliding_window_size", 512))
        found[WINDOW] = found[WINDOW].model_copy(update={"window": window})
    widest = max(mixer.keeps.width for mixer in found.values())
    found = {kind: mixer.model_copy(update={"kept_width": widest}) for kind, mixer in found.items()}
    return tuple(found[kind] for kind in kinds)


def _kinds(config: ConfigJson, num_layers: int) -> list[str]:
    """The kind of each layer. In files without `per_layer_config`, `full_attention` is that with an index."""
    names = config.layer_types(num_layers, _KINDS)
    if names is None:
        has_windows = config.flag("use_sliding_window", True)
        names = [WINDOW if has_windows and i > 1 and i % 4 != 1 else FULL for i in range(num_layers)]
    elif config.get("use_dsa") is None and config.get("per_layer_config") is not None:
        return names
    full = _INDEXED if config.flag("use_dsa", True) else FULL
    return [name if name == WINDOW else full for name in names]


def _part(config: ConfigJson, kind: str, kinds: Sequence[str]) -> ConfigJson:
    """What config.json says of layers of a kind."""
    if kind != WINDOW:
        return config
    values: dict[str, Any] = {**config.defaults, **config.values}
    if config.get("per_layer_config") is not None:
        layers = {index for index, each in enumerate(kinds) if each == WINDOW}
        values |= listed_changes(config.get("per_layer_config"), layers, set(_SIZES), "with a window")
    else:
        own = {key: config.get(f"swa_{key}") for key in _SIZES}
        values |= {key: value for key, value in own.items() if value is not None}
        if own["qk_rope_head_dim"] is None:
            sizes = config.part(values)
            values["qk_rope_head_dim"] = sizes.count("head_dim") - sizes.count("qk_nope_head_dim")
    if not has_kinds(config) and config.get("rope_parameters") is None and config.get("rope_scaling") is None:
        values["rope_theta"] = config.get("swa_rope_theta")
    return config.part(values)


def _attention(config: ConfigJson, kind: str) -> LatentAttention:
    index: Index = "interleaved" if kind == _INDEXED else "none"
    (found,) = read_latent(config, index, 1, gate="head", layer_type=WINDOW if kind == WINDOW else FULL)
    if not found.query_rank:
        raise ModelConfigError("`q_lora_rank` is missing: queries that are not compressed are not supported", "M304")
    hidden = config.count("hidden_size")
    return found.model_copy(
        update={
            "has_key_norm": True,
            "norm_eps": config.number("rms_norm_eps", 0, 1),
            "query_scale": (hidden / found.query_rank) ** 0.5,
            "latent_scale": (hidden / found.rank) ** 0.5,
        }
    )
