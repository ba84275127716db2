"""Moonshot AI: Kimi Linear. Kimi K2 is a DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Mapping

from .common import DEEPSEEK_V3, MIXTRAL_NAMES, MOONSHOT_KEYS
from .family import Family

FAMILIES: Mapping[str, Family] = {
    "KimiLinearForCausalLM": Family(
        "kimi_linear",
        "Kimi Linear 48B-A3B",
        DEEPSEEK_V3
        | {
            "vocab_size": 163840,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "moe_intermediate_size": 1024,
            "num_hidden_layers": 27,
            "num_attention_heads": 32,
            "routed_scaling_factor": 2.446,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": None,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 1048576,
            "linear_num_heads": 32,
            "linear_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "bos_token_id": 163584,
            "eos_token_id": 163586,
        },
        own_keys=MOONSHOT_KEYS,
        fixed={"mla_use_nope": True, "moe_router_activation_func": "sigmoid"},
        rope_layers="none",
        is_latent=True,
        states="kimi_linear",
        experts="deepseek",
        renames=MIXTRAL_NAMES | {".forget_gate.": "."},
    ),
}
