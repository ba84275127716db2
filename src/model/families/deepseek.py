"""DeepSeek, and Kimi K2."""

from __future__ import annotations

from collections.abc import Mapping

from .common import COMMON, DEEPSEEK_V3, LLAMA
from .family import Family

FAMILIES: Mapping[str, Family] = {
    "DeepseekV2ForCausalLM": Family(
        "deepseek_v2",
        "DeepSeek-V2, V2-Lite, V2.5, Coder-V2",
        LLAMA
        | {
            "vocab_size": 102400,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1407,
            "routed_scaling_factor": 1.0,
            "topk_method": "greedy",
            "first_k_dense_replace": 0,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
        },
        is_latent=True,
        experts="deepseek_v2",
    ),
    "DeepseekV3ForCausalLM": Family(
        "deepseek_v3",
        "DeepSeek-V3, V3.1, R1; Kimi K2; Moonlight",
        DEEPSEEK_V3,
        is_latent=True,
        experts="deepseek",
    ),
    "DeepseekV32ForCausalLM": Family(
        "deepseek_v32",
        "DeepSeek-V3.2",
        DEEPSEEK_V3
        | {"max_position_embeddings": 163840, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64},
        is_latent=True,
        index="halves",
        experts="deepseek",
    ),
    "DeepseekV4ForCausalLM": Family(
        "deepseek_v4",
        "DeepSeek-V4",
        COMMON
        | {
            "vocab_size": 129280,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 43,
            "num_attention_heads": 64,
            "num_key_value_heads": 1,
            "head_dim": 512,
            "qk_rope_head_dim": 64,
            "q_lora_rank": 1024,
            "o_groups": 8,
            "o_lora_rank": 1024,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "index_topk": 512,
            "sliding_window": 128,
            "num_experts_per_tok": 6,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "scoring_func": "sqrtsoftplus",
            "routed_scaling_factor": 1.5,
            "swiglu_limit": 10.0,
            "num_hash_layers": 3,
            "hc_mult": 4,
            "hc_sinkhorn_iters": 20,
            "hc_eps": 1e-6,
            "compress_rope_theta": 160000.0,
            "max_position_embeddings": 1048576,
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
        fixed={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "norm_topk_prob": True},
        is_compressed=True,
        experts="deepseek_v4",
    ),
}
