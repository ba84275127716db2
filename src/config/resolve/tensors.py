"""The tensors of a model's checkpoint by its shape, as the decoder reads them (engine/models/decoder.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def wanted_tensors(shape: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each, tied embeddings once. shape: fields of ModelSpec."""
    hidden, inner, head_dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["num_heads"] * head_dim, shape["num_kv_heads"] * head_dim
    yield "model.embed_tokens.weight", (shape["vocab_size"], hidden)
    for index in range(shape["num_layers"]):
        layer = f"model.layers.{index}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            yield from _linear(f"{layer}.self_attn.{name}", rows, hidden, shape["attention_bias"])
        yield from _linear(f"{layer}.self_attn.o_proj", hidden, queries, shape["attention_out_bias"])
        if shape["qk_norm"]:
            yield f"{layer}.self_attn.q_norm.weight", (head_dim,)
            yield f"{layer}.self_attn.k_norm.weight", (head_dim,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        for name in ("gate_proj", "up_proj"):
            yield from _linear(f"{layer}.mlp.{name}", inner, hidden, shape["mlp_bias"])
        yield from _linear(f"{layer}.mlp.down_proj", hidden, inner, shape["mlp_bias"])
    yield "model.norm.weight", (hidden,)
    if not shape["tie_word_embeddings"]:
        yield "lm_head.weight", (shape["vocab_size"], hidden)


def _linear(name: str, rows: int, columns: int, has_bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (rows, columns)
    if has_bias:
        yield f"{name}.bias", (rows,)
