"""Zyphra: Zamba."""

from __future__ import annotations

from collections.abc import Mapping

from .common import COMMON
from .family import Family

_NAMES = {
    ".mamba_decoder.": ".",
    ".feed_forward.": ".mlp.",
    ".pre_ff_layernorm.": ".pre_feedforward_layernorm.",
    "model.final_layernorm.": "model.norm.",
}
FAMILIES: Mapping[str, Family] = {
    "ZambaForCausalLM": Family(
        "zamba",
        "Zamba",
        COMMON
        | {
            "vocab_size": 32000,
            "hidden_size": 3712,
            "intermediate_size": 14848,
            "num_hidden_layers": 76,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "hidden_act": "gelu",
            "hidden_mamba_act": "silu",
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "max_position_embeddings": 4096,
            "attn_layer_period": 6,
            "attn_layer_offset": 4,
            "n_mamba_heads": 2,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_dt_rank": "auto",
            "mamba_conv_bias": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        own_keys={"layer_types": "layers_block_type", "head_dim": "attention_head_dim"},
        rope_layers="none",
        states="zamba",
        has_blocks=True,
        renames={".shared_transf.": ".shared_transformer.", **_NAMES},
    ),
    "Zamba2ForCausalLM": Family(
        "zamba2",
        "Zamba2",
        COMMON
        | {
            "vocab_size": 32000,
            "hidden_size": 2560,
            "num_hidden_layers": 54,
            "num_attention_heads": 32,
            "hidden_act": "gelu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e4,
            "tie_word_embeddings": True,
            "max_position_embeddings": 4096,
            "n_mamba_heads": 8,
            "mamba_headdim": "auto",
            "mamba_ngroups": 1,
            "mamba_d_state": 64,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "use_conv_bias": True,
            "time_step_min": 0.001,
            "num_mem_blocks": 1,
            "adapter_rank": 128,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        own_keys={"layer_types": "layers_block_type", "head_dim": "attention_head_dim"},
        fixed={"use_conv_bias": True, "use_long_context": False},
        rope_layers="use_mem_rope",
        mlp_bias="add_bias_linear",
        states="zamba2",
        has_blocks=True,
        renames={
            ".shared_transformer.self_attn.linear_q_adapter_list.": ".adapters.q_proj.",
            ".shared_transformer.self_attn.linear_k_adapter_list.": ".adapters.k_proj.",
            ".shared_transformer.self_attn.linear_v_adapter_list.": ".adapters.v_proj.",
            ".shared_transformer.feed_forward.gate_up_proj_adapter_list.": ".adapters.gate_up_proj.",
            **_NAMES,
        },
    ),
}
