"""dots: dots.llm1 and Dots 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .common import COMMON, MULTIMODAL_NAMES, QWEN, TOWERS
from .family import Family

_DOTS_3 = COMMON | {
    "vocab_size": 152064,
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "moe_intermediate_size": 1536,
    "shared_experts_intermediate_size": 1536,
    "num_hidden_layers": 46,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 524288,
    "rope_theta": 8e7,
    "swa_rope_theta": 5e4,
    "head_dim": 256,
    "q_lora_rank": 1024,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 64,
    "swa_q_lora_rank": 1024,
    "swa_kv_lora_rank": 1024,
    "swa_head_dim": 256,
    "swa_qk_nope_head_dim": 192,
    "swa_v_head_dim": 128,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "pad_token_id": 151659,
    "bos_token_id": 151643,
    "eos_token_id": 151668,
}
_DOTS_3_PARTS: dict[str, Any] = {
    "own_keys": {"shared_experts_intermediate_size": "moe_shared_expert_intermediate_size"},
    "fixed": {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    "is_latent": True,
    "has_latent_kinds": True,
    "experts": "deepseek",
}
FAMILIES: Mapping[str, Family] = {
    "Dots1ForCausalLM": Family(
        "dots1",
        "dots.llm1",
        QWEN
        | {
            "vocab_size": 152064,
            "hidden_size": 4608,
            "intermediate_size": 10944,
            "num_hidden_layers": 62,
            "max_position_embeddings": 2048,
            "max_window_layers": 62,
            "moe_intermediate_size": 1408,
            "first_k_dense_replace": 0,
            "n_routed_experts": 128,
            "num_experts_per_tok": 6,
            "n_shared_experts": 2,
        },
        bias="attention_bias",
        out_bias="attention_bias",
        head_norm="head",
        windows="last",
        experts="deepseek",
    ),
    "Dots3NoteForCausalLM": Family("dots3_note_text", "Dots 3, text only", _DOTS_3, **_DOTS_3_PARTS),
    "Dots3NoteForConditionalGeneration": Family(
        "dots3_note",
        "Dots 3",
        _DOTS_3,
        **_DOTS_3_PARTS,
        renames=MULTIMODAL_NAMES,
        ignored=(*TOWERS, "vision_encoder.", "audio_encoder.", "audio_adapter."),
        text_in="text_config",
    ),
}
