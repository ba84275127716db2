"""The rotary embedding of a layer: rope type and parameters from its spec, which model/rope.py has checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from ...model.mixers import RopeSpec
from ..layers.rotary import ROPE_KINDS, RopeKind, RopeParameters, longrope_attention_factor, yarn_attention_factor


def rope_parameters(rope: RopeSpec, longest: int) -> RopeParameters:
    """longest: max_position_embeddings of the model."""
    found = _of_kind(rope, longest)
    if rope.short_mscale is None or rope.long_mscale is None:
        return found
    return replace(found, attention_factor=rope.short_mscale, long_attention_factor=rope.long_mscale)


def _of_kind(rope: RopeSpec, longest: int) -> RopeParameters:
    assert rope.kind in ROPE_KINDS, rope.kind
    trained = rope.original_max_position_embeddings or longest
    common: dict[str, Any] = {"kind": cast(RopeKind, rope.kind), "theta": rope.theta, "original_max_position": trained}
    match rope.kind:
        case "default":
            return RopeParameters(**common)
        case "linear" | "ntk":
            return RopeParameters(**common, factor=rope.factor or 1)
        case "dynamic":  # for this type the trained context is max_position_embeddings
            return RopeParameters(**common | {"original_max_position": longest}, factor=rope.factor or 1)
        case "llama3":
            own = {key: getattr(rope, key) for key in ("factor", "low_freq_factor", "high_freq_factor")}
            return RopeParameters(**common, **own)
        case "proportional":
            share = rope.partial_rotary_factor
            return RopeParameters(**common, factor=rope.factor or 1, rotated_share=share)
        case "longrope":
            factor = longest / trained
            scale = rope.attention_factor
            if scale is None:
                scale = longrope_attention_factor(factor, trained)
            short, long = rope.short_factor or (), rope.long_factor or ()
            return RopeParameters(**common, short_factors=short, long_factors=long, attention_factor=scale)
        case _:  # yarn
            factor = longest / trained if rope.factor is None else rope.factor
            scale = rope.attention_factor
            if scale is None:
                scale = yarn_attention_factor(factor, rope.mscale, rope.mscale_all_dim)
            own = {key: getattr(rope, key) for key in ("beta_fast", "beta_slow", "truncate")}
            given = {key: value for key, value in own.items() if value is not None}
            return RopeParameters(**common, **given, factor=factor, attention_factor=scale)
