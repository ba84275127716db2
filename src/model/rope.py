"""The rotary embedding in config.json: both spellings of its keys, and its parameters, checked.

The parameters keep the names of config.json; engine/layers/rotary.py computes with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config_json import ConfigJson, ModelConfigError, shown
from .mixers import RopeSpec

SCALINGS = ("linear", "dynamic", "llama3", "yarn")  # that a deployment can ask for too
ROPE_KINDS = ("default", *SCALINGS, "longrope", "proportional", "ntk")
FULL, WINDOW = "full_attention", "sliding_attention"
_FULL_KINDS = (FULL, "indexed_attention")  # layers that see everything, in `rope_parameters` by kind of layer
_TOP_LEVEL = ("partial_rotary_factor", "original_max_position_embeddings")  # in some files outside of the object
_NUMBERS: dict[str, tuple[float, float]] = {  # least and most
    "factor": (1, 1e6),
    "low_freq_factor": (0, 1e6),
    "high_freq_factor": (0, 1e6),
    "beta_fast": (1e-6, 1e6),
    "beta_slow": (1e-6, 1e6),
    "attention_factor": (0, 1e3),
    "mscale": (0, 1e3),
    "mscale_all_dim": (0, 1e3),
    "partial_rotary_factor": (0, 1),
    "llama_4_scaling_beta": (0, 100),
    "short_mscale": (0, 1e3),
    "long_mscale": (0, 1e3),
}
_FACTORS = ("short_factor", "long_factor")
_MSCALES = ("short_mscale", "long_mscale")
_NEEDED = {
    "longrope": _FACTORS,
    "linear": ("factor",),
    "dynamic": ("factor",),
    "ntk": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
_MAX_THETA = 1e15


def apply_options(config: dict[str, Any], scaling: Mapping[str, Any], theta: float | str) -> dict[str, Any]:
    """The options `rope_scaling` and `rope_theta` in place of what config.json says, under the names it uses.

    With parameters by kind of layer, in place of parameters of layers that see everything. A scaling of an unknown
    kind, which a rule reports, is left out.
    """
    rope = config.get("rope_parameters")
    if isinstance(rope, Mapping) and (full := _full_kind(rope)) is not None:
        inner = apply_options({"rope_parameters": rope[full]}, scaling, theta)["rope_parameters"]
        return {**config, "rope_parameters": {**rope, full: inner}}
    if scaling and kind_of(scaling) in ("default", *SCALINGS):
        config["rope_scaling"] = dict(scaling)
        if isinstance(rope, Mapping):
            rope = {"rope_theta": rope.get("rope_theta"), **scaling}
    if theta != "auto":
        config["rope_theta"] = theta
        if isinstance(rope, Mapping):
            rope = {**rope, "rope_theta": theta}
    if isinstance(rope, Mapping):
        config["rope_parameters"] = rope
    return config


def is_one_rope(config: Mapping[str, Any]) -> bool:
    """Whether config.json describes one rotary embedding, the same in all layers."""
    rope = config.get("rope_parameters")
    if isinstance(rope, Mapping) and rope:
        return not any(isinstance(value, Mapping) for value in rope.values())
    return "rope_theta" in config and "rope_local_base_freq" not in config


def longest_stable(config: Mapping[str, Any], limit: int) -> int:
    """The longest context at which the rotary embedding does not depend on the longest sequence of a batch.

    limit: of the model. In transformers, `longrope` and `dynamic` change all positions of a batch beyond it.
    """
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = kind_of(rope) if isinstance(rope, Mapping) else None
    if kind == "dynamic":
        own = config.get("max_position_embeddings")
        return min(limit, own) if isinstance(own, int) else limit
    if kind == "longrope":
        own = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
        return min(limit, own) if isinstance(own, int) else limit
    return limit


def kind_of(parameters: Mapping[str, Any]) -> Any:
    """mrope has three positions per token, which are equal for text."""
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    return "default" if kind == "mrope" else kind


def read_rope(
    config: ConfigJson, head_dim: int, layer_type: str = FULL, *, partial: float = 1.0, has_mscales: bool = False
) -> RopeSpec:
    """The rotary embedding of layers of a kind: `rope_parameters` may have an object for each kind.

    partial: default of `partial_rotary_factor`. has_mscales: the family reads `short_mscale` and `long_mscale`.
    Raises ModelConfigError for a parameter that is missing or out of its range. Other kinds keep only their name.
    """
    given, theta = _written(config, layer_type), read_theta(config, layer_type)
    kind = kind_of(given)
    for key in _TOP_LEVEL:
        if config.get(key) is not None:
            given.setdefault(key, config.get(key))
    given.setdefault("partial_rotary_factor", partial)
    if not isinstance(kind, str) or kind not in ROPE_KINDS:
        return RopeSpec(theta=theta, kind=shown(kind))
    part = config.part(given)
    if kind == "dynamic" and given.get("alpha") is not None and head_dim > 2:  # Hunyuan: another base, always
        theta *= part.number("alpha", 0, 1e6) ** (head_dim / (head_dim - 2))
        kind = "default"
    has_mscales = has_mscales and kind != "default"
    for key in (*_NEEDED.get(kind, ()), *(_MSCALES if has_mscales else ())):
        if given.get(key) is None:
            raise ModelConfigError(f"rope type `{kind}` needs `{key}`")
    found: dict[str, Any] = {
        key: part.number(key, *limits)
        for key, limits in _NUMBERS.items()
        if given.get(key) is not None and (has_mscales or key not in _MSCALES)
    }
    for key in _FACTORS:
        if given.get(key) is not None:
            found[key] = _factors(given[key], key, int(head_dim * found["partial_rotary_factor"]) // 2)
    if given.get("original_max_position_embeddings") is not None:
        found["original_max_position_embeddings"] = part.count("original_max_position_embeddings")
    if given.get("truncate") is not None:
        found["truncate"] = part.flag("truncate")
    if kind == "llama3" and found["low_freq_factor"] > found["high_freq_factor"]:
        raise ModelConfigError("`high_freq_factor` must not be less than `low_freq_factor`")
    if kind == "dynamic" and head_dim < 4:
        raise ModelConfigError(f"`head_dim` is {head_dim}; rope type `dynamic` needs at least 4")
    if kind == "yarn" and theta == 1:
        raise ModelConfigError("`rope_theta` is 1; rope type `yarn` needs more")
    return RopeSpec(theta=theta, kind=kind, **found)


def read_theta(config: ConfigJson, layer_type: str = FULL) -> float:
    """The base. Raises ModelConfigError if it is out of its range."""
    theta = _written(config, layer_type).get("rope_theta")
    theta = config.get("rope_theta") if theta is None else theta
    return config.part({"rope_theta": theta}).number("rope_theta", 1, _MAX_THETA, 10_000.0)


def has_kinds(config: ConfigJson) -> bool:
    """Whether config.json has parameters for each kind of layer."""
    return _full_kind(config.get("rope_parameters")) is not None


def _full_kind(rope: Any) -> str | None:
    """The kind of layers that see everything, in parameters for each kind of layer; None of other parameters."""
    if not isinstance(rope, Mapping):
        return None
    return next((kind for kind in _FULL_KINDS if isinstance(rope.get(kind), Mapping)), None)


def _written(config: ConfigJson, layer_type: str) -> dict[str, Any]:
    """The object with its parameters, under either name. Where both are written, the older one counts, as in
    transformers; the base may be in the other one."""
    new, old = config.get("rope_parameters"), config.get("rope_scaling")
    written = new or old or {}
    if (full := _full_kind(new)) is not None:
        written = written.get(full if layer_type == FULL else layer_type) or {}
    elif isinstance(new, Mapping) and isinstance(old, Mapping) and new and old:
        top = config.get("rope_theta")
        written = {"rope_theta": new.get("rope_theta") if top is None else top, **old}
    if not isinstance(written, Mapping):
        raise ModelConfigError("`rope_parameters` must be an object")
    return dict(written)


def _factors(values: Any, key: str, num_pairs: int) -> tuple[float, ...]:
    numbers = [value for value in values if isinstance(value, int | float)] if isinstance(values, list) else []
    if len(numbers) != num_pairs or not all(0 < number < 1e9 for number in numbers):
        raise ModelConfigError(f"`{key}` must be a list of {num_pairs} numbers above 0")
    return tuple(float(number) for number in numbers)
