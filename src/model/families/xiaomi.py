"""Xiaomi: MiMo."""

from __future__ import annotations

from collections.abc import Mapping

from .common import COMMON, QWEN
from .family import Family

FAMILIES: Mapping[str, Family] = {
    "MiMoForCausalLM": Family(
        "mimo",
        "MiMo-7B",
        QWEN
        | {
            "vocab_size": 151680,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "rope_theta": 640000.0,
        },
        bias=True,
        windows="last",
        window_if="use_sliding_window",
    ),
    "MiMoV2FlashForCausalLM": Family(
        "mimo_v2_flash",
        "MiMo-V2",
        COMMON
        | {
            "vocab_size": 152576,
            "hidden_size": 4096,
            "intermediate_size": 16384,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 48,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 192,
            "v_head_dim": 128,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "sliding_window": 129,
            "attention_value_scale": 0.707,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.334},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.334},
            },
            "bos_token_id": 1,
            "eos_token_id": None,
        },
        bias="attention_bias",
        windows="hybrid_layer_pattern",
        value_dim_key="v_head_dim",
        window_kv_heads=2,
        sinks="windows",
        multipliers={"values_scale": "attention_value_scale"},
        experts="mimo",
        renames={".attention_sink_bias": ".sinks"},
    ),
}
