"""Tencent: Hunyuan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .common import COMMON, LLAMA
from .family import Family

_HUNYUAN = LLAMA | {"vocab_size": 290943, "rms_norm_eps": 1e-5, "pad_token_id": 0}
_HUNYUAN_PARTS: dict[str, Any] = {
    "bias": "attention_bias",
    "out_bias": "attention_bias",
    "head_norm": "head_after_rope",
}
_HUNYUAN_NAMES = {".query_layernorm.": ".q_norm.", ".key_layernorm.": ".k_norm."}
FAMILIES: Mapping[str, Family] = {
    "HunYuanDenseV1ForCausalLM": Family(
        "hunyuan_v1_dense", "Hunyuan, dense", _HUNYUAN, **_HUNYUAN_PARTS | {"renames": _HUNYUAN_NAMES}
    ),
    "HunYuanMoEV1ForCausalLM": Family(
        "hunyuan_v1_moe",
        "Hunyuan A13B, Hunyuan-Large",
        _HUNYUAN | {"num_experts": 1, "num_experts_per_tok": 1},
        own_keys={"num_experts_per_tok": "moe_topk"},
        experts="hunyuan",
        **_HUNYUAN_PARTS | {"renames": _HUNYUAN_NAMES | {".gate.wg.": ".gate.", ".shared_mlp.": ".shared_experts."}},
    ),
    "HYV3ForCausalLM": Family(
        "hy_v3",
        "Hunyuan 3 with experts",
        COMMON
        | {
            "vocab_size": 120832,
            "intermediate_size": 13312,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "rope_theta": 11158840.0,
            "n_routed_experts": 192,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "moe_intermediate_size": 1536,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.826,
        },
        bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        own_keys={
            "n_routed_experts": "num_experts",
            "n_shared_experts": "num_shared_experts",
            "routed_scaling_factor": "router_scaling_factor",
        },
        head_norm="head",
        experts="deepseek",
        renames={
            ".mlp.router.gate.": ".mlp.gate.",
            ".mlp.expert_bias": ".mlp.gate.e_score_correction_bias",
            ".mlp.e_score_correction_bias": ".mlp.gate.e_score_correction_bias",
            ".mlp.shared_mlp.": ".mlp.shared_experts.",
        },
    ),
    "HYV4ForCausalLM": Family(
        "hy_v4",
        "Hunyuan 4",
        COMMON
        | {
            "vocab_size": 120832,
            "hidden_size": 2816,
            "intermediate_size": 6912,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 34,
            "num_attention_heads": 32,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 262144,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.827,
            "first_k_dense_replace": 1,
            "swiglu_limit": 10.0,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 192,
            "qk_rope_head_dim": 64,
            "v_head_dim": 256,
            "rope_interleave": False,
            "index_topk": 2048,
            "index_head_dim": 128,
            "index_n_heads": 16,
            "index_topk_freq": 4,  # the first layer, and every fourth from the second on, have an index
            "hc_mult": 4,
            "hc_magnitude": 2.0,
            "hc_eps": 1e-6,
            "pad_token_id": 120002,
            "bos_token_id": 120000,
            "eos_token_id": 120025,
        },
        is_latent=True,
        index="last_halves",
        gate="element",
        sinks="all",
        experts="hy_v4",
        hyper_connections="independent",
        renames={
            ".learnable_sink_param": ".sinks",
            ".linear_gate.": ".gate_proj.",
            ".self_attn.gate_proj.": ".self_attn.g_proj.",
            ".hc_pre.hc_": ".hc_",
            ".hc_attn_layer.hc_": ".attn_hc.",
            ".hc_mlp_layer.hc_": ".ffn_hc.",
            ".hc_head_": ".hc_",
        },
    ),
}
