"""The rotary embedding in config.json: both spellings of its keys, and its parameters, checked.

The parameters keep the names of config.json; engine/layers/rotary.py computes with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config_json import ConfigJson, shown
from .resolved import RopeSpec

ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
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
}
_NEEDED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
_MAX_THETA = 1e15


def apply_options(config: dict[str, Any], scaling: Mapping[str, Any], theta: float | str) -> dict[str, Any]:
    """The options `rope_scaling` and `rope_theta` in place of what config.json says, under the names it uses."""
    rope = config.get("rope_parameters")
    if scaling:
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


def read_rope(config: ConfigJson, head_dim: int, *, may_be_unknown: bool = False) -> RopeSpec:
    """may_be_unknown: the kind is that of the option `model.rope_scaling`, which a rule checks.

    Raises ModelFilesError for a kind that is not supported or a parameter out of its range.
    """
    given, theta = _written(config), read_theta(config)
    kind = given.pop("rope_type", None) or given.pop("type", None) or "default"
    for key in _TOP_LEVEL:
        if config.get(key) is not None:
            given.setdefault(key, config.get(key))
    if kind not in ROPE_KINDS:
        if may_be_unknown:
            return RopeSpec(theta=theta)
        raise config.error(f"rope type {shown(kind)} is not supported; supported: {', '.join(ROPE_KINDS)}", "M304")
    if given.pop("partial_rotary_factor", None) not in (None, 1):
        raise config.error("a `partial_rotary_factor` other than 1 is not supported", "M304")
    return RopeSpec(theta=theta, kind=kind, parameters=_checked(config, kind, given, theta, head_dim))


def read_theta(config: ConfigJson) -> float:
    """The base. Raises ModelFilesError if it is out of its range."""
    theta = _written(config).get("rope_theta")
    theta = config.get("rope_theta") if theta is None else theta
    return config.part({"rope_theta": theta}).number("rope_theta", 1, _MAX_THETA, 10_000.0)


def _written(config: ConfigJson) -> dict[str, Any]:
    """The object with its parameters, under either name."""
    written = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(written, Mapping):
        raise config.error("`rope_parameters` must be an object")
    return dict(written)


def _checked(config: ConfigJson, kind: str, given: dict[str, Any], theta: float, head_dim: int) -> dict[str, Any]:
    """The parameters that any kind uses; others are of no effect."""
    part = config.part(given)
    for key in _NEEDED.get(kind, ()):
        if given.get(key) is None:
            raise config.error(f"rope type `{kind}` needs `{key}`")
    found: dict[str, Any] = {
        key: part.number(key, *limits) for key, limits in _NUMBERS.items() if given.get(key) is not None
    }
    if given.get("original_max_position_embeddings") is not None:
        found["original_max_position_embeddings"] = part.count("original_max_position_embeddings")
    if given.get("truncate") is not None:
        found["truncate"] = part.flag("truncate")
    if kind == "llama3" and not found["low_freq_factor"] < found["high_freq_factor"]:
        raise config.error("`high_freq_factor` must be greater than `low_freq_factor`")
    if kind == "dynamic" and head_dim < 4:
        raise config.error(f"`head_dim` is {head_dim}; rope type `dynamic` needs at least 4")
    if kind == "yarn" and theta == 1:
        raise config.error("`rope_theta` is 1; rope type `yarn` needs more")
    return found
