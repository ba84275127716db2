"""Meta: Llama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .common import COMMON, LLAMA, MULTIMODAL_NAMES, TOWERS
from .family import Family

_LLAMA_4 = COMMON | {
    "vocab_size": 202048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "attention_chunk_size": 8192,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "use_qk_norm": True,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "attn_scale": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA_4_NAMES = {".feed_forward.": ".mlp.", ".mlp.router.": ".mlp.gate.", ".shared_expert.": ".shared_experts."}
_LLAMA_4_PARTS: dict[str, Any] = {
    "bias": "attention_bias",
    "out_bias": "attention_bias",
    "head_norm": "bare_after_rope",
    "head_norm_if": "use_qk_norm",
    "mlp_width_key": "intermediate_size_mlp",
    "windows": "chunks",
    "rope_layers": "listed",
    "is_interleaved": True,
    "experts": "llama4",
    "renames": _LLAMA_4_NAMES,
    "fused_experts": "columns",
    "ignored": TOWERS,
}
FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(
        "llama",
        "Llama 2 and 3.x (text), and many derivatives",
        LLAMA,
        bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    "Llama4ForCausalLM": Family("llama4_text", "Llama 4, text only", _LLAMA_4, **_LLAMA_4_PARTS),
    "Llama4ForConditionalGeneration": Family(
        "llama4",
        "Llama 4 Scout, Maverick",
        _LLAMA_4,
        text_in="text_config",
        **_LLAMA_4_PARTS | {"renames": MULTIMODAL_NAMES | _LLAMA_4_NAMES},
    ),
}
