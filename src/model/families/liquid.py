"""Liquid AI: LFM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .common import COMMON
from .family import Family

_LFM2 = COMMON | {
    "vocab_size": 65536,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_key_value_heads": 8,
    "norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 128000,
    "rope_theta": 1e6,
    "conv_L_cache": 3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LFM2_PARTS: dict[str, Any] = {
    "head_norm": "head",
    "eps_key": "norm_eps",
    "states": "short_convolution",
    "renames": {
        "model.embedding_norm.": "model.norm.",
        ".operator_norm.": ".input_layernorm.",
        ".ffn_norm.": ".post_attention_layernorm.",
        ".feed_forward.": ".mlp.",
        ".mlp.expert_bias": ".mlp.gate.e_score_correction_bias",
        ".w1.": ".gate_proj.",
        ".w2.": ".down_proj.",
        ".w3.": ".up_proj.",
        ".self_attn.out_proj.": ".self_attn.o_proj.",
        ".q_layernorm.": ".q_norm.",
        ".k_layernorm.": ".k_norm.",
    },
}
FAMILIES: Mapping[str, Family] = {
    "Lfm2ForCausalLM": Family(
        "lfm2",
        "LFM2",
        _LFM2
        | {
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.0,
            "block_multiple_of": 256,
        },
        **_LFM2_PARTS,
    ),
    "Lfm2MoeForCausalLM": Family(
        "lfm2_moe",
        "LFM2 with experts",
        _LFM2
        | {
            "hidden_size": 2048,
            "intermediate_size": 7168,
            "moe_intermediate_size": 1792,
            "num_dense_layers": 2,
            "num_experts": 32,
            "num_experts_per_tok": 4,
            "use_expert_bias": True,
            "norm_topk_prob": True,
        },
        experts="lfm2",
        **_LFM2_PARTS,
    ),
    "Lfm3ForCausalLM": Family(
        "lfm3",
        "LFM3",
        _LFM2
        | {
            "vocab_size": 128000,
            "hidden_size": 2048,
            "intermediate_size": 7680,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "sliding_window": 256,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
            },
            "use_attention_gate": True,
            "conv_L_cache": 7,
            "bos_token_id": 124894,
            "eos_token_id": 124900,
            "pad_token_id": 124893,
        },
        fixed={"use_sandwich_norm": True},
        bias="attention_bias",
        out_bias="attention_bias",
        gate="head",
        gate_if="use_attention_gate",
        norms="both",
        windows="each_fourth",
        **_LFM2_PARTS
        | {
            "states": "lfm3",
            "renames": {
                ".self_attn.gate_proj.": ".self_attn.g_proj.",
                **_LFM2_PARTS["renames"],
                ".ffn_norm.": ".pre_feedforward_layernorm.",
                ".post_operator_norm.": ".post_attention_layernorm.",
                ".post_ffn_norm.": ".post_feedforward_layernorm.",
            },
        },
    ),
}
