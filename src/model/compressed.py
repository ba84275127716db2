"""Attention over compressed vectors, as the families that have it write it in config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .config_json import ConfigJson, ModelConfigError, shown
from .mixers import CompressedAttention, RopeSpec
from .rope import read_rope

COMPRESSED_TABLE = {  # of the start-up table, where attention over compressed vectors has no kernels
    "paged_attention": "torch, row by row: compressed vectors",
    "decode_step": "op by op: compressed vectors in torch",
}


class _Kind(NamedTuple):
    name: str  # in `layer_types`
    rate_key: str | None  # the key of older files for the tokens of a vector; None: there are no vectors
    rate: int = 0  # of the published models, which older files list for each layer
    is_sparse: bool = False  # an index chooses the vectors, and groups of tokens overlap


_WINDOW = _Kind("sliding_attention", None)
_SPARSE = _Kind("compressed_sparse_attention", "compress_rate_csa", 4, is_sparse=True)
_DENSE = _Kind("heavily_compressed_attention", "compress_rate_hca", 128)
_KINDS = {kind.name: kind for kind in (_WINDOW, _SPARSE, _DENSE)}
_OF_RATE = {kind.rate: kind for kind in _KINDS.values()}
_RATES = list(_OF_RATE)  # what JSON has need not be hashable


def read_compressed(config: ConfigJson, num_layers: int) -> tuple[CompressedAttention, ...]:
    """Read the attention of each layer. Raises ModelConfigError for numbers that contradict each other."""
    kinds = _kinds(config, num_layers)
    found = {kind: _attention(config, kind) for kind in dict.fromkeys(kinds)}
    return tuple(found[kind] for kind in kinds)


def _kinds(config: ConfigJson, num_layers: int) -> list[_Kind]:
    names = config.layer_types(num_layers, list(_KINDS))
    if names is not None:
        return [_KINDS[name] for name in names]
    rates = config.get("compress_ratios")
    if rates is None:
        return [_SPARSE if index > 2 and index % 2 else _DENSE for index in range(num_layers)]
    # The layers that draft are listed too, after those of the model.
    if not isinstance(rates, list) or len(rates) < num_layers or any(rate not in _RATES for rate in rates[:num_layers]):
        known = ", ".join(map(str, _OF_RATE))
        raise ModelConfigError(f"`compress_ratios` must list one of {known} for each of {num_layers} layers")
    return [_OF_RATE[rate] for rate in rates[:num_layers]]


def _attention(config: ConfigJson, kind: _Kind) -> CompressedAttention:
    heads, groups = config.count("num_attention_heads"), config.count("o_groups")
    if heads % groups:
        raise ModelConfigError(f"{heads} heads cannot be divided into the {groups} groups of `o_groups`")
    if config.count("num_key_value_heads", 1) != 1:
        raise ModelConfigError("`num_key_value_heads` must be 1: all heads share a vector")
    found = CompressedAttention(
        num_heads=heads,
        head_dim=config.count("head_dim"),
        query_rank=config.count("q_lora_rank"),
        window=config.count("sliding_window"),
        out_groups=groups,
        out_rank=config.count("o_lora_rank"),
        rope=_rope(config, is_compressed=kind.rate_key is not None),
        norm_eps=config.number("rms_norm_eps", 0, 1),
        rate=_rate(config, kind),
        overlaps=kind.is_sparse,
    )
    if kind.is_sparse:
        index = {
            "index_heads": config.count("index_n_heads"),
            "index_dim": config.count("index_head_dim"),
            "index_topk": config.count("index_topk"),
        }
        found = found.model_copy(update=index)
        if found.index_dim < int(found.head_dim * found.rope.partial_rotary_factor):
            raise ModelConfigError(f"`index_head_dim` is {found.index_dim}, less than what is rotated of a head")
    if found.rate and (found.head_dim + found.index_dim) % found.rate:
        width = found.head_dim + found.index_dim
        raise ModelConfigError(f"{width} elements cannot be kept in the places of {found.rate} tokens", "M304")
    return found


def _rate(config: ConfigJson, kind: _Kind) -> int:
    if kind.rate_key is None:
        return 0
    rates = config.get("compress_rates") or {}
    if not isinstance(rates, Mapping):
        raise ModelConfigError("`compress_rates` must be an object")
    return config.count(kind.rate_key, config.part(rates).count(kind.name, kind.rate))


def _rope(config: ConfigJson, *, is_compressed: bool) -> RopeSpec:
    """The rotary embedding, of which layers with compressed vectors have another base than others, and a scaling."""
    head_dim, share = config.count("head_dim"), config.get("partial_rotary_factor")
    if share is None:
        share = config.count("qk_rope_head_dim") / head_dim
    partial = config.part({"partial_rotary_factor": share}).number("partial_rotary_factor", 0, 1)
    name = "compress" if is_compressed else "main"
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise ModelConfigError(f"`rope_parameters` is {shown(given)}; it must be an object")
    own: dict[str, Any] = dict(given)
    if isinstance(given.get(name), Mapping):
        own = dict(given[name])
    elif is_compressed:
        own["rope_theta"] = config.number("compress_rope_theta", 1, 1e15)
    else:
        own = {"rope_theta": config.number("rope_theta", 1, 1e15, 1e4)}
    rope = read_rope(ConfigJson({"rope_parameters": own}, config.defaults), head_dim, partial=partial)
    if int(head_dim * rope.partial_rotary_factor) % 2:
        raise ModelConfigError("rotary embedding needs an even number of rotated elements")
    exact = {"attention_factor": 1.0} if rope.kind == "yarn" and rope.attention_factor is None else {}
    return rope.model_copy(update={"is_interleaved": True, **exact})
