"""LG AI Research: EXAONE."""

from __future__ import annotations

from collections.abc import Mapping

from .common import LLAMA
from .family import Family

FAMILIES: Mapping[str, Family] = {
    "Exaone4ForCausalLM": Family(
        "exaone4",
        "EXAONE 4",
        LLAMA
        | {
            "vocab_size": 102400,
            "intermediate_size": 16384,
            "rms_norm_eps": 1e-5,
            "sliding_window": 4096,
            "bos_token_id": 0,
        },
        head_norm="head",
        norms="outputs",
        windows=4,
        rope_layers="windows_if_any",
    ),
    "ExaoneMoeForCausalLM": Family(
        "exaone_moe",
        "K-EXAONE",
        LLAMA
        | {
            "vocab_size": 102400,
            "intermediate_size": 16384,
            "rms_norm_eps": 1e-5,
            "sliding_window": 4096,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 1024,
            "n_routed_experts": 64,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "eos_token_id": 53,
            "pad_token_id": 0,
        },
        own_keys={"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"},
        head_norm="head",
        windows=4,
        rope_layers="windows_if_any",
        experts="deepseek",
        renames={".mlp.e_score_correction_bias": ".mlp.gate.e_score_correction_bias"},
    ),
}
