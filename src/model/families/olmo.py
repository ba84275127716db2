"""Ai2: OLMo."""

from __future__ import annotations

from collections.abc import Mapping

from .common import LLAMA
from .family import Family

_OLMO = LLAMA | {
    "vocab_size": 50304,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": 50279,
    "pad_token_id": 1,
}
FAMILIES: Mapping[str, Family] = {
    "Olmo2ForCausalLM": Family(
        "olmo2", "OLMo 2", _OLMO, bias="attention_bias", out_bias="attention_bias", head_norm="whole", norms="outputs"
    ),
    "Olmo3ForCausalLM": Family(
        "olmo3",
        "OLMo 3",
        _OLMO | {"sliding_window": 4096, "rope_theta": 500000.0},
        bias="attention_bias",
        out_bias="attention_bias",
        head_norm="whole",
        norms="outputs",
        windows=4,
        window_rope="unscaled",
    ),
    "OlmoHybridForCausalLM": Family(
        "olmo_hybrid",
        "OLMo Hybrid",
        _OLMO
        | {
            "vocab_size": 100352,
            "hidden_size": 3840,
            "num_attention_heads": 30,
            "max_position_embeddings": 65536,
            "rms_norm_eps": 1e-6,
            "linear_conv_kernel_dim": 4,
            "linear_allow_neg_eigval": True,
            "eos_token_id": 100257,
            "pad_token_id": 100277,
        },
        bias="attention_bias",
        out_bias="attention_bias",
        head_norm="whole",
        norms="outputs",
        rope_layers="rope_parameters",
        states="olmo_hybrid",
        renames={
            ".attention_layer_norm.": ".input_layernorm.",
            ".feedforward_layer_norm.": ".post_attention_layernorm.",
        },
    ),
    "OlmoeForCausalLM": Family(
        "olmoe",
        "OLMoE",
        _OLMO
        | {
            "hidden_size": 2048,
            "intermediate_size": 2048,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "max_position_embeddings": 4096,
            "num_experts": 64,
            "num_experts_per_tok": 8,
        },
        bias="attention_bias",
        out_bias="attention_bias",
        own_keys={"moe_intermediate_size": "intermediate_size"},
        fixed={"clip_qkv": None},
        head_norm="whole",
        experts="qwen",
    ),
    "FlexOlmoForCausalLM": Family(
        "flex_olmo",
        "FlexOlmo",
        _OLMO
        | {
            "vocab_size": 100352,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 4096,
            "rope_theta": 500000.0,
            "moe_intermediate_size": 11008,
            "num_experts": 7,
            "num_experts_per_tok": 5,
            "eos_token_id": 100257,
            "pad_token_id": 100277,
        },
        bias="attention_bias",
        out_bias="attention_bias",
        own_keys={"moe_intermediate_size": "intermediate_size"},
        head_norm="whole",
        norms="outputs",
        experts="qwen",
    ),
}
