"""Z.ai: GLM."""

from __future__ import annotations

from collections.abc import Mapping

from .common import COMMON, DEEPSEEK_V3
from .family import Family

_GLM = COMMON | {
    "vocab_size": 151552,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "rms_norm_eps": 1.5625e-07,
    "max_position_embeddings": 131072,
    "attention_bias": True,
    "eos_token_id": [151329, 151336, 151338],
    "pad_token_id": 151329,
}
FAMILIES: Mapping[str, Family] = {
    "GlmForCausalLM": Family("glm", "GLM-4 9B", _GLM, bias="attention_bias", is_interleaved=True, partial=0.5),
    "Glm4ForCausalLM": Family(
        "glm4",
        "GLM-4 0414",
        _GLM,
        bias="attention_bias",
        norms="both",
        is_interleaved=True,
        partial=0.5,
        renames={
            ".post_attention_layernorm.": ".pre_feedforward_layernorm.",
            ".post_self_attn_layernorm.": ".post_attention_layernorm.",
            ".post_mlp_layernorm.": ".post_feedforward_layernorm.",
        },
    ),
    "Glm4MoeForCausalLM": Family(
        "glm4_moe",
        "GLM-4.5 to 4.7",
        COMMON
        | {
            "vocab_size": 151552,
            "intermediate_size": 10944,
            "num_hidden_layers": 46,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "n_routed_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
        },
        bias="attention_bias",
        head_norm="head",
        head_norm_if="use_qk_norm",
        partial=0.5,
        experts="deepseek",
    ),
    "Glm4MoeLiteForCausalLM": Family(
        "glm4_moe_lite",
        "GLM-4.7-Flash",
        COMMON
        | {
            "vocab_size": 154880,
            "hidden_size": 2048,
            "intermediate_size": 10240,
            "moe_intermediate_size": 1536,
            "num_hidden_layers": 47,
            "num_attention_heads": 20,
            "n_shared_experts": 1,
            "n_routed_experts": 64,
            "num_experts_per_tok": 4,
            "routed_scaling_factor": 1.8,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
            "q_lora_rank": 768,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 202752,
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
        is_latent=True,
        experts="deepseek",
    ),
    "GlmMoeDsaForCausalLM": Family(
        "glm_moe_dsa",
        "GLM-5",
        DEEPSEEK_V3
        | {
            "vocab_size": 154880,
            "hidden_size": 6144,
            "intermediate_size": 12288,
            "num_hidden_layers": 78,
            "num_attention_heads": 64,
            "q_lora_rank": 2048,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "n_group": 1,
            "topk_group": 1,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 202752,
            "index_topk": 2048,
            "index_head_dim": 128,
            "index_n_heads": 32,
        },
        is_latent=True,
        index="interleaved",
        experts="deepseek",
    ),
}
