"""Mistral AI."""

from __future__ import annotations

from collections.abc import Mapping

from .common import LLAMA, MIXTRAL_NAMES, MULTIMODAL_NAMES, TOWERS
from .family import Family

# Names in weights of Mistral AI's own format, whatever the family; params_json.py reads its configuration.
CONSOLIDATED_NAMES = {
    "^tok_embeddings.": "model.embed_tokens.",
    "^output.": "lm_head.",
    "^norm.": "model.norm.",
    "^layers.": "model.layers.",
    ".attention_norm.": ".input_layernorm.",
    ".ffn_norm.": ".post_attention_layernorm.",
    ".attention.w": ".self_attn.",
    ".self_attn.q.": ".self_attn.q_proj.",
    ".self_attn.k.": ".self_attn.k_proj.",
    ".self_attn.v.": ".self_attn.v_proj.",
    ".self_attn.o.": ".self_attn.o_proj.",
    ".feed_forward.": ".mlp.",
    ".block_sparse_moe.": ".mlp.",
    ".w1.": ".gate_proj.",
    ".w2.": ".down_proj.",
    ".w3.": ".up_proj.",
}
CONSOLIDATED_TOWERS = ("vision_encoder.", "vision_language_adapter.", "patch_merger.", "pre_mm_projector_norm.")
_MISTRAL = LLAMA | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
FAMILIES: Mapping[str, Family] = {
    "MistralForCausalLM": Family("mistral", "Mistral 7B, Nemo, Small; Devstral", _MISTRAL, windows="all"),
    "MinistralForCausalLM": Family(
        "ministral",
        "Ministral 8B",
        _MISTRAL | {"max_window_layers": 0},
        windows="last",
    ),
    "Ministral3ForCausalLM": Family(
        "ministral3",
        "Ministral 3",
        _MISTRAL
        | {
            "vocab_size": 131072,
            "num_hidden_layers": 34,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 262144,
            "sliding_window": None,
            "pad_token_id": 11,
        },
        windows="all",
    ),
    "Mistral3ForConditionalGeneration": Family(
        "mistral3",
        "Mistral Small 3.1 and later, Ministral 3 with vision",
        _MISTRAL | {"head_dim": 128, "sliding_window": None},
        windows="all",
        text_in="text_config",
        renames=MULTIMODAL_NAMES,
        ignored=TOWERS,
    ),
    "MixtralForCausalLM": Family(
        "mixtral",
        "Mixtral 8x7B, 8x22B",
        _MISTRAL
        | {
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
            "rope_theta": 1e6,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        windows="all",
        experts="mixtral",
        renames=MIXTRAL_NAMES,
    ),
}
