"""Latent attention, as the families that have it write it in config.json."""

from __future__ import annotations

import math
from typing import Any, Literal

from .config_json import ConfigJson, ModelConfigError
from .mixers import Gate, LatentAttention, RopeSpec
from .rope import FULL, read_rope

SPARSE_TABLE = {  # of the start-up table: what has no kernel where an index chooses the tokens of attention
    "paged_attention": "partly torch in contexts of more tokens than the index chooses",
    "decode_step": "op by op: the index of sparse attention in torch",
}
NO_ROTATION = RopeSpec(theta=1e4, kind="proportional", partial_rotary_factor=0.0)
_INDEX_KINDS = ["F", "S", "full", "shared"]  # what JSON has need not be hashable
# An index rotates its elements in pairs: halves of the first elements, halves of the last ones, or neighbours.
Index = Literal["none", "halves", "last_halves", "interleaved"]


def read_latent(
    config: ConfigJson,
    index: Index,
    num_layers: int,
    *,
    has_rope: bool = True,
    gate: Gate = "none",
    has_sinks: bool = False,
    layer_type: str = FULL,
) -> tuple[LatentAttention, ...]:
    """Read the attention of each layer. Raises ModelConfigError for numbers that contradict each other.

    index: which pairs of its queries and keys are rotated, of models whose attention is sparse.
    has_rope: False: the part of a query and key that others rotate has no position.
    gate, has_sinks: as of LatentAttention.
    layer_type: the kind of these layers, where `rope_parameters` has an object for each kind.
    """
    attention = _attention(config, layer_type, has_rope=has_rope).model_copy(
        update={"gate": gate, "has_sinks": has_sinks}
    )
    if gate == "with_queries" and not attention.query_rank:
        raise ModelConfigError("gates that come with the queries need `q_lora_rank`", "M304")
    if index == "none":
        return (attention,) * num_layers
    if not attention.query_rank:
        raise ModelConfigError("sparse attention needs `q_lora_rank`", "M304")
    found: dict[str, Any] = {
        "index_heads": config.count("index_n_heads"),
        "index_dim": config.count("index_head_dim"),
        "index_topk": config.count("index_topk"),
        "has_interleaved_index": index == "interleaved",
    }
    if index == "last_halves":
        found |= {"turns_index_end": True, "index_eps": config.number("rms_norm_eps", 0, 1)}
    if found["index_dim"] < attention.rope_dim:
        raise ModelConfigError(f"`index_head_dim` is {found['index_dim']}, less than `qk_rope_head_dim`")
    own = attention.model_copy(update=found)
    shared = own.model_copy(update={"shares_index": True})
    return tuple(shared if is_shared else own for is_shared in _shares(config, num_layers))


def _shares(config: ConfigJson, num_layers: int) -> list[bool]:
    """Whether each layer attends to the tokens that the layer before has chosen (GLM-5)."""
    kinds = config.get("indexer_types") or config.get("index_topk_pattern")
    if kinds is None:
        period, first = config.count("index_topk_freq", 1), config.count("index_skip_topk_offset", 2)
        found = [max(layer - first + 1, 0) % period != 0 for layer in range(num_layers)]
    elif isinstance(kinds, str | list) and len(kinds) == num_layers and all(kind in _INDEX_KINDS for kind in kinds):
        found = [kind in ("S", "shared") for kind in kinds]
    else:
        raise ModelConfigError(f"`indexer_types` must say `full` or `shared` of each of {num_layers} layers")
    if found[0]:
        raise ModelConfigError("the first layer must have an index of its own")
    return found


def _attention(config: ConfigJson, layer_type: str, *, has_rope: bool) -> LatentAttention:
    heads = config.count("num_attention_heads")
    if config.count("num_key_value_heads", heads) != heads:
        raise ModelConfigError(f"`num_key_value_heads` must be {heads}, as `num_attention_heads`: all share a latent")
    plain, turned = config.count("qk_nope_head_dim"), config.count("qk_rope_head_dim")
    if turned % 2:
        raise ModelConfigError(f"`qk_rope_head_dim` is {turned}; rotary embedding needs an even one")
    rope = _whole(config, read_rope(config, turned, layer_type), turned) if has_rope else NO_ROTATION
    rope = rope.model_copy(update={"is_interleaved": has_rope and config.flag("rope_interleave", True)})
    return LatentAttention(
        num_heads=heads,
        query_rank=0 if config.get("q_lora_rank") is None else config.count("q_lora_rank"),
        rank=config.count("kv_lora_rank"),
        plain_dim=plain,
        rope_dim=turned,
        value_dim=config.count("v_head_dim", config.count("hidden_size") // heads),
        has_bias=config.flag("attention_bias"),
        scale=(plain + turned) ** -0.5 * _scale(rope),
        rope=rope,
    )


def _whole(config: ConfigJson, rope: RopeSpec, turned: int) -> RopeSpec:
    """The rotary embedding of all `turned` elements. Some files say what share of `head_dim` these are."""
    share = rope.partial_rotary_factor
    if share != 1 and (config.get("head_dim") is None or round(share * config.count("head_dim"), 6) != turned):
        raise ModelConfigError("`partial_rotary_factor` must be 1: `qk_rope_head_dim` says what is rotated", "M304")
    return rope.model_copy(update={"partial_rotary_factor": 1.0})


def _scale(rope: RopeSpec) -> float:
    """What yarn multiplies the products of queries and keys by, beside the lengths of the rotated parts."""
    if rope.kind == "default" or not rope.mscale_all_dim:
        return 1.0
    factor = rope.factor or 1.0
    return 1.0 if factor <= 1 else (0.1 * rope.mscale_all_dim * math.log(factor) + 1.0) ** 2
