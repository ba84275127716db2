"""Alibaba: Qwen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..spec import Norm
from .common import COMMON, MULTIMODAL_NAMES, QWEN, TOWERS
from .family import Family

_QWEN_3_5 = COMMON | {
    "vocab_size": 248320,
    "intermediate_size": 12288,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_QWEN_3_5_PARTS: dict[str, Any] = {
    "bias": "attention_bias",
    "out_bias": "attention_bias",
    "head_norm": "head",
    "norm": Norm(is_offset=True),
    "partial": 0.25,
    "gate": "element",
    "states": "gated_delta",
}
_SHARED_EXPERT = {".mlp.shared_expert.": ".mlp.shared_experts."}
_QWEN_3_5_MOE = _QWEN_3_5 | {
    "hidden_size": 2048,
    "intermediate_size": 512,  # of no layer: all have experts
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
}
_QWEN_3_5_MOE_PARTS: dict[str, Any] = _QWEN_3_5_PARTS | {
    "experts": "qwen",
    "renames": _SHARED_EXPERT,
    "ignored": TOWERS,
}
_QWEN_4 = _QWEN_3_5_MOE | {
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "hc_count": 4,
    "hc_lowrank": 320,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 20_000_000,
    "make_ngram_vocab_size_divisible_by": 128,
    "seed": 1234,
    "split_ngram_parts": 512,
}
_QWEN_4_PARTS: dict[str, Any] = _QWEN_3_5_MOE_PARTS | {
    "partial": 1.0,
    "states": "qwen4",
    "norms": "gated_residual",
    "has_block_index": True,
    "has_ngrams": True,
}
FAMILIES: Mapping[str, Family] = {
    "Qwen2ForCausalLM": Family(
        "qwen2",
        "Qwen2, Qwen2.5, QwQ, distillations of DeepSeek-R1",
        QWEN,
        bias=True,
        windows="last",
        window_if="use_sliding_window",
    ),
    "Qwen2MoeForCausalLM": Family(
        "qwen2_moe",
        "Qwen1.5-MoE, Qwen2 57B-A14B",
        QWEN
        | {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "qkv_bias": True,
        },
        bias="qkv_bias",
        windows=2,
        window_if="use_sliding_window",
        experts="qwen",
        renames=_SHARED_EXPERT,
    ),
    "Qwen2_5_VLForConditionalGeneration": Family(
        "qwen2_5_vl",
        "Qwen2.5-VL",
        QWEN,
        bias=True,
        windows="last",
        window_if="use_sliding_window",
        text_in="text_config",
        renames=MULTIMODAL_NAMES,
        ignored=TOWERS,
    ),
    "Qwen3ForCausalLM": Family(
        "qwen3",
        "Qwen3, dense",
        QWEN | {"head_dim": 128},
        bias="attention_bias",
        out_bias="attention_bias",
        head_norm="head",
        windows="last",
        window_if="use_sliding_window",
    ),
    "Qwen3MoeForCausalLM": Family(
        "qwen3_moe",
        "Qwen3 30B-A3B, 235B-A22B, Qwen3-Coder",
        QWEN
        | {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 24,
            "num_key_value_heads": 4,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
        bias="attention_bias",
        out_bias="attention_bias",
        head_norm="head",
        windows="all",
        window_if="use_sliding_window",
        experts="qwen",
    ),
    "Qwen3VLForConditionalGeneration": Family(
        "qwen3_vl",
        "Qwen3-VL, dense",
        QWEN | {"head_dim": 128, "sliding_window": None, "rope_theta": 5e6},
        bias="attention_bias",
        out_bias="attention_bias",
        head_norm="head",
        text_in="text_config",
        renames=MULTIMODAL_NAMES,
        ignored=TOWERS,
    ),
    "Qwen3VLMoeForConditionalGeneration": Family(
        "qwen3_vl_moe",
        "Qwen3-VL with experts",
        QWEN
        | {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "max_position_embeddings": 128000,
            "sliding_window": None,
            "rope_theta": 500000.0,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "norm_topk_prob": True,
        },
        bias="attention_bias",
        out_bias="attention_bias",
        fixed={"norm_topk_prob": True},
        head_norm="head",
        experts="qwen",
        text_in="text_config",
        renames=MULTIMODAL_NAMES,
        fused_experts="columns_or_stacked",
        ignored=TOWERS,
    ),
    "Qwen3NextForCausalLM": Family(
        "qwen3_next",
        "Qwen3-Next",
        _QWEN_3_5
        | {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 48,
            "num_key_value_heads": 2,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "norm_topk_prob": True,
        },
        experts="qwen",
        renames=_SHARED_EXPERT,
        **_QWEN_3_5_PARTS | {"states": "grouped_gated_delta"},
    ),
    "Qwen3_5ForCausalLM": Family("qwen3_5_text", "Qwen3.5, text only", _QWEN_3_5, ignored=TOWERS, **_QWEN_3_5_PARTS),
    "Qwen3_5ForConditionalGeneration": Family(
        "qwen3_5",
        "Qwen3.5, dense",
        _QWEN_3_5,
        text_in="text_config",
        renames=MULTIMODAL_NAMES,
        ignored=TOWERS,
        **_QWEN_3_5_PARTS,
    ),
    "Qwen3_5MoeForCausalLM": Family(
        "qwen3_5_moe_text", "Qwen3.5 with experts, text only", _QWEN_3_5_MOE, **_QWEN_3_5_MOE_PARTS
    ),
    "Qwen3_5MoeForConditionalGeneration": Family(
        "qwen3_5_moe",
        "Qwen3.5 with experts",
        _QWEN_3_5_MOE,
        text_in="text_config",
        **_QWEN_3_5_MOE_PARTS | {"renames": MULTIMODAL_NAMES | _SHARED_EXPERT},
    ),
    "Qwen4ExpForCausalLM": Family("qwen4_exp_text", "Qwen4-Exp, text only", _QWEN_4, **_QWEN_4_PARTS),
    "Qwen4ExpForConditionalGeneration": Family(
        "qwen4_exp",
        "Qwen4-Exp",
        _QWEN_4,
        text_in="text_config",
        **_QWEN_4_PARTS | {"renames": MULTIMODAL_NAMES | _SHARED_EXPERT},
    ),
}
