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
    ".block_sparse_moe.router.": ".mlp.gate.",
    ".block_sparse_moe.experts.": ".mlp.experts.",
}
_SHARED_NAMES = {
    ".shared_mlp.input_linear.": ".mlp.shared_experts.gate_up_proj.",
    ".shared_mlp.output_linear.": ".mlp.shared_experts.down_proj.",
}
_GRANITE = LLAMA | {"attention_multiplier": 1.0}
_GRANITE_MOE = _GRANITE | {"num_local_experts": 8, "num_experts_per_tok": 2}
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
_SWA_PARTS: dict[str, Any] = _GRANITE_PARTS | {
    "windows": "all_but_each_fourth",
    "rope_layers": "layer_rope_theta",
    "sinks": "all",
}
FAMILIES: Mapping[str, Family] = {
    "GraniteForCausalLM": Family("granite", "Granite 3", _GRANITE, mlp_bias="mlp_bias", **_GRANITE_PARTS),
    "GraniteMoeForCausalLM": Family(
        "granitemoe",
        "Granite 3 with experts",
        _GRANITE_MOE,
        experts="granite",
        renames=_GRANITE_EXPERTS,
        **_GRANITE_PARTS,
    ),
    "GraniteMoeSharedForCausalLM": Family(
        "granitemoeshared",
        "Granite with experts and a shared one",
        _GRANITE_MOE,
        experts="granite",
        renames=_GRANITE_EXPERTS | _SHARED_NAMES,
        **_GRANITE_PARTS,
    ),
    "GraniteSWAForCausalLM": Family(
        "granite_swa",
        "Granite with sliding windows",
        _GRANITE
        | {
            "vocab_size": 100352,
            "hidden_size": 2560,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 20,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
            "sliding_window": 128,
            "bos_token_id": 100257,
            "eos_token_id": 100257,
        },
        mlp_bias="mlp_bias",
        **_SWA_PARTS,
    ),
    "GraniteMoeSWAForCausalLM": Family(
        "granitemoe_swa",
        "Granite with sliding windows and experts",
        _GRANITE_MOE | {"sliding_window": 128},
        experts="granite",
        renames=_GRANITE_EXPERTS | _SHARED_NAMES,
        **_SWA_PARTS,
    ),
    "GraniteMoeHybridForCausalLM": Family(
        "granitemoehybrid",
        "Granite 4",
        _GRANITE_MOE | MAMBA2 | {"shared_intermediate_size": 1024},
        rope_layers="position_embedding_type",
        mlp_width_key="shared_intermediate_size",
        experts="granite_hybrid",
        states="granite_hybrid",
        renames=_GRANITE_EXPERTS | _SHARED_NAMES,
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
        bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        partial=0.5,
        states="bamba",
        renames=BAMBA_NAMES,
    ),
}
