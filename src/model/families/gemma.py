"""Google: Gemma."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..spec import Norm
from .common import COMMON, MULTIMODAL_NAMES, TOWERS
from .family import Family

_GEMMA = COMMON | {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_GEMMA_2 = _GEMMA | {
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA_3 = _GEMMA_2 | {
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
}
_GEMMA_PARTS: dict[str, Any] = {
    "bias": "attention_bias",
    "out_bias": "attention_bias",
    "norm": Norm(is_offset=True),
    "scales_embedding": True,
    "rounds_embedding_scale": True,
    "activation_key": "hidden_activation",
}
_SOFTCAPS = {"softcap": "attn_logit_softcapping", "logits_softcap": "final_logit_softcapping"}
_GEMMA_3_PARTS = _GEMMA_PARTS | {
    "norms": "both",
    "head_norm": "head",
    "windows": 6,
    "window_rope": "local",
    "multipliers": {"logits_softcap": "final_logit_softcapping"},  # the other softcap is in the files, and nowhere used
}
_GEMMA_4 = _GEMMA | {
    "vocab_size": 262144,
    "num_hidden_layers": 30,
    "max_position_embeddings": 131072,
    "sliding_window": 512,
    "global_head_dim": 512,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    },
}
_GEMMA_4_NAMES = {
    ".router.proj.": ".mlp.gate.",
    ".router.scale": ".mlp.gate.norm.weight",
    ".router.per_expert_scale": ".mlp.expert_scales",
    ".experts.": ".mlp.experts.",
}
_GEMMA_4_UNIFIED = _GEMMA_4 | {
    "max_position_embeddings": 262144,
    "sliding_window": 1024,
}
_GEMMA_4_PARTS: dict[str, Any] = {
    "bias": "attention_bias",
    "out_bias": "attention_bias",
    "fixed": {"use_bidirectional_attention": "vision"},
    "own_keys": {"num_experts_per_tok": "top_k_experts"},
    "head_norm": "head",
    "has_value_norm": True,
    "norms": "both",
    "has_layer_scalars": True,
    "shares_keys": True,
    "scales_embedding": True,
    "rounds_embedding_scale": True,
    "activation_key": "hidden_activation",
    "windows": 6,
    "multipliers": {"logits_softcap": "final_logit_softcapping"},
    "experts": "gemma4",
    "renames": _GEMMA_4_NAMES,
    "ignored": TOWERS,
}
_GEMMA_4_WITH_INPUTS = _GEMMA_4_PARTS | {"has_layer_inputs": True}
FAMILIES: Mapping[str, Family] = {
    "RecurrentGemmaForCausalLM": Family(
        "recurrent_gemma",
        "RecurrentGemma",
        COMMON
        | {
            "vocab_size": 256000,
            "hidden_size": 2560,
            "intermediate_size": 7680,
            "num_hidden_layers": 26,
            "num_attention_heads": 10,
            "hidden_activation": "gelu_pytorch_tanh",
            "block_types": ["recurrent", "recurrent", "attention"],
            "sliding_window": 2048,
            "conv1d_width": 4,
            "logits_soft_cap": 30.0,
            "tie_word_embeddings": True,
            "max_position_embeddings": 8192,  # that it was trained on: the class has no limit
            "bos_token_id": 2,
            "eos_token_id": 1,
            "pad_token_id": 0,
        },
        own_keys={"sliding_window": "attention_window_size"},
        norm=Norm(is_offset=True),
        bias="attention_bias",
        out_bias=True,
        mlp_bias=True,
        mlp_width_of=2,
        activation_key="hidden_activation",
        windows="all",
        partial=0.5,
        scales_embedding=True,
        rounds_embedding_scale="bfloat16",
        multipliers={"logits_softcap": "logits_soft_cap"},
        states="rg_lru",
        renames={
            ".temporal_block.q_proj.": ".self_attn.q_proj.",
            ".temporal_block.k_proj.": ".self_attn.k_proj.",
            ".temporal_block.v_proj.": ".self_attn.v_proj.",
            ".temporal_block.o_proj.": ".self_attn.o_proj.",
            ".temporal_block.": ".recurrent.",
            ".temporal_pre_norm.": ".input_layernorm.",
            ".channel_pre_norm.": ".post_attention_layernorm.",
            ".mlp_block.": ".mlp.",
            "model.final_norm.": "model.norm.",
        },
    ),
    "GemmaForCausalLM": Family(
        "gemma",
        "Gemma",
        _GEMMA
        | {
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
        },
        **_GEMMA_PARTS | {"activation_key": "hidden_act"},
    ),
    "Gemma2ForCausalLM": Family(
        "gemma2", "Gemma 2", _GEMMA_2, norms="both", windows=2, multipliers=_SOFTCAPS, **_GEMMA_PARTS
    ),
    "VaultGemmaForCausalLM": Family(
        "vaultgemma",
        "VaultGemma",
        _GEMMA_2,
        windows=2,
        multipliers=_SOFTCAPS,
        renames={".pre_feedforward_layernorm.": ".post_attention_layernorm."},
        **_GEMMA_PARTS,
    ),
    "Gemma3ForCausalLM": Family("gemma3_text", "Gemma 3 1B", _GEMMA_3, **_GEMMA_3_PARTS),
    "Gemma3ForConditionalGeneration": Family(
        "gemma3",
        "Gemma 3 4B to 27B",
        _GEMMA_3,
        text_in="text_config",
        renames=MULTIMODAL_NAMES,
        ignored=TOWERS,
        **_GEMMA_3_PARTS,
    ),
    "Gemma4ForCausalLM": Family("gemma4_text", "Gemma 4, text only", _GEMMA_4, **_GEMMA_4_WITH_INPUTS),
    "Gemma4ForConditionalGeneration": Family(
        "gemma4",
        "Gemma 4 31B, 26B-A4B, E4B, E2B",
        _GEMMA_4,
        text_in="text_config",
        **_GEMMA_4_WITH_INPUTS | {"renames": MULTIMODAL_NAMES | _GEMMA_4_NAMES},
    ),
    "Gemma4UnifiedForCausalLM": Family(
        "gemma4_unified_text", "Gemma 4 12B, text only", _GEMMA_4_UNIFIED, **_GEMMA_4_PARTS
    ),
    "Gemma4UnifiedForConditionalGeneration": Family(
        "gemma4_unified",
        "Gemma 4 12B",
        _GEMMA_4_UNIFIED,
        text_in="text_config",
        **_GEMMA_4_PARTS | {"renames": MULTIMODAL_NAMES},
    ),
}
