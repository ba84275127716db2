"""IBM: Granite and Bamba."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .common import BAMBA_NAMES, LLAMA, MAMBA2
from .family import Family

_GRANITE_EXPERTS = {
    ".block_sparse_moe.input_linear.weight": ".mlp.experts.gate_up_proj",
    ".block_sparse_moe.output_linear.weight": ".mlp.experts.down_proj",
    ".block_sparse_moe.router.layer.": ".mlp.gate.",
}
_GRANITE_PARTS: dict[str, Any] = {
    "bias": "attention_bias",
    "out_bias": "attention_bias",
    "multipliers": {
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "scale": "attention_multiplier",
        "logits_divisor": "logits_scaling",
    },
}
FAMILIES: Mapping[str, Family] = {
    "GraniteForCausalLM": Family("granite", "Granite 3", LLAMA, mlp_bias="mlp_bias", **_GRANITE_PARTS),
    "GraniteMoeForCausalLM": Family(
        "granitemoe",
        "Granite 3 with experts",
        LLAMA | {"num_local_experts": 8, "num_experts_per_tok": 2},
        experts="granite",
        renames=_GRANITE_EXPERTS,
        fused_experts="stacked",
        **_GRANITE_PARTS,
    ),
    "GraniteMoeHybridForCausalLM": Family(
        "granitemoehybrid",
        "Granite 4",
        LLAMA | MAMBA2 | {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024},
        rope_layers="position_embedding_type",
        mlp_width_key="shared_intermediate_size",
        experts="granite_hybrid",
        states="granite_hybrid",
        renames=_GRANITE_EXPERTS
        | {
            ".shared_mlp.input_linear.": ".mlp.shared_experts.gate_up_proj.",
            ".shared_mlp.output_linear.": ".mlp.shared_experts.down_proj.",
        },
        fused_experts="stacked",
        **_GRANITE_PARTS,
    ),
    "BambaForCausalLM": Family(
        "bamba",
        "Bamba",
        MAMBA2
        | {
            "vocab_size": 128000,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 262144,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        "attention_bias",
        "attention_bias",
        "mlp_bias",
        partial=0.5,
        states="bamba",
        renames=BAMBA_NAMES,
    ),
}
