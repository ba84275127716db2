"""The rotary embedding of a model: rope type and parameters from its spec, which config/resolve/rope.py has checked."""

from __future__ import annotations

from typing import Any, cast

from ...config import ModelSpec
from ..layers.rotary import ROPE_KINDS, RopeKind, RopeParameters, yarn_attention_factor


def rope_parameters(model_spec: ModelSpec) -> RopeParameters:
    rope, given = model_spec.rope, model_spec.rope.parameters
    assert rope.kind in ROPE_KINDS, rope.kind
    longest = model_spec.max_position_embeddings
    trained = given.get("original_max_position_embeddings", longest)
    common: dict[str, Any] = {"kind": cast(RopeKind, rope.kind), "theta": rope.theta, "original_max_position": trained}
    match rope.kind:
        case "default":
            return RopeParameters(**common)
        case "linear":
            return RopeParameters(**common, factor=given["factor"])
        case "dynamic":  # for this type the trained context is max_position_embeddings
            return RopeParameters(**common | {"original_max_position": longest}, factor=given["factor"])
        case "llama3":
            own = {key: given[key] for key in ("factor", "low_freq_factor", "high_freq_factor")}
            return RopeParameters(**common, **own)
        case _:  # yarn
            factor = given.get("factor", longest / trained)
            implied = yarn_attention_factor(factor, given.get("mscale"), given.get("mscale_all_dim"))
            own = {key: given[key] for key in ("beta_fast", "beta_slow", "truncate") if key in given}
            return RopeParameters(
                **common, **own, factor=factor, attention_factor=given.get("attention_factor", implied)
            )
