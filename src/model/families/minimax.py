"""MiniMax: MiniMax-01 and M1, MiniMax-M2."""

from __future__ import annotations

from collections.abc import Mapping

from .common import COMMON, LLAMA, MIXTRAL_NAMES
from .family import Family

FAMILIES: Mapping[str, Family] = {
    "MiniMaxForCausalLM": Family(
        "minimax",
        "MiniMax-Text-01 and M1, in the format of transformers",
        LLAMA
        | {
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rope_theta": 1e6,
            "rms_norm_eps": 1e-5,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "pad_token_id": None,
        },
        fixed={"hidden_act": "silu"},
        norms="stream",
        states="minimax",
        experts="mixtral",
        windows="all",
        renames=MIXTRAL_NAMES,
    ),
    "MiniMaxM2ForCausalLM": Family(
        "minimax_m2",
        "MiniMax-M2",
        COMMON
        | {
            "vocab_size": 200064,
            "hidden_size": 3072,
            "intermediate_size": 1536,
            "num_hidden_layers": 62,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 196608,
            "rope_theta": 5e6,
            "num_local_experts": 256,
            "num_experts_per_tok": 8,
            "bos_token_id": 200034,
            "eos_token_id": 200020,
        },
        head_norm="whole",
        partial="rotary_dim",
        experts="minimax",
        renames=MIXTRAL_NAMES | {".mlp.e_score_correction_bias": ".mlp.gate.e_score_correction_bias"},
    ),
}
