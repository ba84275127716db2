"""NVIDIA: Nemotron."""

from __future__ import annotations

from collections.abc import Mapping

from ..spec import Norm
from .common import COMMON
from .family import Family

FAMILIES: Mapping[str, Family] = {
    "NemotronForCausalLM": Family(
        "nemotron",
        "Nemotron 3 8B, Nemotron 4, Minitron",
        COMMON
        | {
            "vocab_size": 256000,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_attention_heads": 48,
            "head_dim": 128,
            "hidden_act": "relu2",
            "norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "bos_token_id": 2,
            "eos_token_id": 3,
        },
        bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        norm=Norm(kind="layer", has_bias=True, is_offset=True),
        eps_key="norm_eps",
        is_gated=False,
        partial=0.5,
    ),
    "NemotronHForCausalLM": Family(
        "nemotron_h",
        "Nemotron-H, Nemotron Nano 2 and 3",
        COMMON
        | {
            "vocab_size": 131072,
            "intermediate_size": 21504,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "hidden_act": "relu2",
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "mamba_hidden_act": "silu",
            "n_groups": 8,
            "ssm_state_size": 128,
            "conv_kernel": 4,
            "use_conv_bias": True,
            "time_step_min": 0.001,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 7688,
            "moe_shared_expert_intermediate_size": 7688,
            "norm_topk_prob": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        mlp_bias="mlp_bias",
        own_keys={"hidden_act": "mlp_hidden_act", "rms_norm_eps": "layer_norm_epsilon"},
        is_gated=False,
        rope_layers="none",
        experts="nemotron_h",
        states="nemotron_h",
        renames={
            "backbone.": "model.",
            "model.embeddings.": "model.embed_tokens.",
            ".mixer.norm.": ".mamba_norm.",
            **{f".mixer.{part}_proj.": f".self_attn.{part}_proj." for part in "qkvo"},
            **{f".mixer.{part}": f".mamba.{part}" for part in ("in_proj", "out_proj", "conv1d", "A_log", "dt_bias")},
            ".mixer.D": ".mamba.D",
            ".mixer.": ".mlp.",
            ".norm.": ".input_layernorm.",
            "model.norm_f.": "model.norm.",
            ".mamba_norm.": ".mamba.norm.",
        },
    ),
}
