"""Baidu: ERNIE."""

from __future__ import annotations

from collections.abc import Mapping

from .common import LLAMA
from .family import Family

_ERNIE = LLAMA | {
    "vocab_size": 103424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "pad_token_id": 0,
}
FAMILIES: Mapping[str, Family] = {
    "Ernie4_5ForCausalLM": Family(
        "ernie4_5",
        "ERNIE 4.5, dense",
        _ERNIE,
        bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        is_interleaved=True,
    ),
    "Ernie4_5_MoeForCausalLM": Family(
        "ernie4_5_moe",
        "ERNIE 4.5 with experts",
        _ERNIE
        | {
            "hidden_size": 2560,
            "intermediate_size": 12288,
            "num_hidden_layers": 28,
            "num_attention_heads": 20,
            "num_key_value_heads": 4,
            "head_dim": None,  # the width divided by the heads
            "num_experts": 64,
            "num_experts_per_tok": 6,
            "moe_num_shared_experts": 2,
            "moe_intermediate_size": 1536,
            "moe_layer_start_index": 1,
        },
        bias="use_bias",
        out_bias="use_bias",
        own_keys={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
        fixed={"use_bias": False},
        is_interleaved=True,
        experts="ernie",
        renames={".mlp.gate.moe_statics.": ".mlp.gate.", ".mlp.moe_statics.": ".mlp.gate."},
    ),
}
