"""The rotary embedding of a model: rope type and parameters from its spec."""

from __future__ import annotations

from typing import Any, cast

from ...config import ModelFilesError, ModelSpec
from ..layers.rotary import ROPE_KINDS, RopeKind, RopeParameters, yarn_attention_factor


def rope_parameters(model_spec: ModelSpec) -> RopeParameters:
    """Raises ModelFilesError for a rope type or a parameter that is not supported."""
    rope = model_spec.rope
    if rope.kind not in ROPE_KINDS:
        raise ModelFilesError(
            f"{model_spec.model_path}/config.json: rope type `{rope.kind}` is not supported; "
            f"supported: {', '.join(ROPE_KINDS)}"
        )
    given = rope.parameters
    if given.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelFilesError(
            f"{model_spec.model_path}/config.json: partial_rotary_factor {given['partial_rotary_factor']} is not "
            f"supported for {model_spec.architecture}"
        )
    trained = int(given.get("original_max_position_embeddings") or model_spec.max_position_embeddings)

    def number(name: str, default: float | None = None) -> float:
        value: Any = given.get(name)
        if value is None:
            value = default
        if value is None:
            raise ModelFilesError(f"{model_spec.model_path}/config.json: rope type `{rope.kind}` needs `{name}`")
        return float(value)

    common: dict[str, Any] = {
        "kind": cast(RopeKind, rope.kind),
        "theta": rope.theta,
        "original_max_position": trained,
    }
    match rope.kind:
        case "default":
            return RopeParameters(**common)
        case "linear":
            return RopeParameters(**common, factor=number("factor"))
        case "dynamic":  # for this type the trained context is max_position_embeddings
            common["original_max_position"] = model_spec.max_position_embeddings
            return RopeParameters(**common, factor=number("factor"))
        case "llama3":
            return RopeParameters(
                **common,
                factor=number("factor"),
                low_freq_factor=number("low_freq_factor"),
                high_freq_factor=number("high_freq_factor"),
            )
        case _:  # yarn
            factor = number("factor", model_spec.max_position_embeddings / trained)
            implied = yarn_attention_factor(factor, given.get("mscale"), given.get("mscale_all_dim"))
            return RopeParameters(
                **common,
                factor=factor,
                beta_fast=number("beta_fast", 32.0),
                beta_slow=number("beta_slow", 1.0),
                truncate=bool(given.get("truncate", True)),
                attention_factor=number("attention_factor", implied),
            )
