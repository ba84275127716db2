"""Microsoft: Phi."""

from __future__ import annotations

from collections.abc import Mapping

from ..spec import Norm
from .common import COMMON, LLAMA, MIXTRAL_NAMES
from .family import Family

FAMILIES: Mapping[str, Family] = {
    "PhiForCausalLM": Family(
        "phi",
        "Phi-1, Phi-1.5, Phi-2",
        {
            "vocab_size": 51200,
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "intermediate_size": 8192,
            "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "max_position_embeddings": 2048,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        bias=True,
        out_bias=True,
        mlp_bias=True,
        fixed={"qk_layernorm": False},
        norm=Norm(kind="layer", has_bias=True),
        eps_key="layer_norm_eps",
        norms="common",
        is_gated=False,
        partial=0.5,
        has_output_bias=True,
        renames={
            "^model.final_layernorm.": "model.norm.",
            ".self_attn.dense.": ".self_attn.o_proj.",
            ".fc1.": ".up_proj.",
            ".fc2.": ".down_proj.",
        },
    ),
    "Phi3ForCausalLM": Family(
        "phi3",
        "Phi-3, Phi-4",
        LLAMA
        | {
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "eos_token_id": 32000,
            "pad_token_id": 32000,
        },
        windows="all",
    ),
    "PhimoeForCausalLM": Family(
        "phimoe",
        "Phi-3.5-MoE, Phi-mini-MoE, Phi-tiny-MoE",
        COMMON
        | {
            "vocab_size": 32064,
            "intermediate_size": 6400,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "rope_theta": 1e6,
            "num_local_experts": 16,
            "num_experts_per_tok": 2,
            "router_jitter_noise": 0.01,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        bias="attention_bias",
        out_bias="attention_bias",
        fixed={"num_experts_per_tok": 2},
        norm=Norm(kind="layer", has_bias=True),
        windows="all",
        has_rope_mscales=True,
        has_output_bias="lm_head_bias",
        experts="phimoe",
        renames={"mlp.router.": "mlp.gate.", **MIXTRAL_NAMES},
    ),
}
