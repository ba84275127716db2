"""Cohere: Command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..spec import Norm
from .common import COMMON
from .family import Family

_COHERE = COMMON | {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
    "logit_scale": 0.0625,
    "bos_token_id": 5,
    "eos_token_id": 255001,
    "pad_token_id": 0,
}
_COHERE_PARTS: dict[str, Any] = {
    "bias": "attention_bias",
    "out_bias": "attention_bias",
    "norm": Norm(kind="layer"),
    "eps_key": "layer_norm_eps",
    "norms": "common",
    "is_interleaved": True,
    "multipliers": {"logits_scale": "logit_scale"},
}
FAMILIES: Mapping[str, Family] = {
    "CohereForCausalLM": Family(
        "cohere", "Command R, Aya", _COHERE, head_norm="layer", head_norm_if="use_qk_norm", **_COHERE_PARTS
    ),
    "Cohere2ForCausalLM": Family(
        "cohere2",
        "Command R7B, Command A",
        _COHERE | {"head_dim": 128, "sliding_window": 4096},
        windows=4,
        rope_layers="windows",
        **_COHERE_PARTS,
    ),
    "Cohere2MoeForCausalLM": Family(
        "cohere2_moe",
        "Command with experts",
        _COHERE
        | {
            "head_dim": 128,
            "sliding_window": 4096,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "num_shared_experts": 0,
            "shared_expert_combination_strategy": "average",
            "expert_selection_fn": "softmax",
            "norm_topk_prob": True,
            "first_k_dense_replace": 0,
            "prefix_dense_sliding_window_pattern": 1,
        },
        fixed={"rms_norm_eps": None, "prefix_dense_sliding_window_pattern": 1},
        mlp_width_key="prefix_dense_intermediate_size",
        windows=4,
        rope_layers="windows",
        experts="cohere",
        **_COHERE_PARTS,
    ),
}
