"""SK Telecom: A.X K2."""

from __future__ import annotations

from collections.abc import Mapping

from .common import COMMON
from .family import Family

FAMILIES: Mapping[str, Family] = {
    "AXK2ForCausalLM": Family(
        "axk2",
        "A.X K2",
        COMMON
        | {
            "vocab_size": 163840,
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "moe_intermediate_size": 512,
            "num_hidden_layers": 48,
            "max_position_embeddings": 131072,
            "n_routed_experts": 128,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "first_k_dense_replace": 1,
            "q_lora_rank": 384,
            "kv_lora_rank": 128,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "v_head_dim": 64,
            "index_topk": 2048,
            "index_head_dim": 128,
            "index_n_heads": 16,
            "gated_norm_rank": 16,
            "bos_token_id": 163691,
            "eos_token_id": 163691,
        },
        is_latent=True,
        index="halves",
        gate="with_queries",
        norm_gates_key="gated_norm_rank",
        experts="deepseek",
        renames={
            ".q_gate_proj.": ".q_b_proj.",
            "layernorm.norm.": "layernorm.",
            "layernorm.mlp.fc1.": "layernorm.W_down.",
            "layernorm.mlp.fc2.": "layernorm.W_up.",
        },
    ),
}
