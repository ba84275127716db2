"""The architectures that are described exactly: their parts, and the defaults of their classes in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: the defaults of its config class, and which parts it has whatever config.json says."""

    model_type: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    qk_norm: bool = False
    attention_bias: bool | None = None  # None: config.json decides
    attention_out_bias: bool | None = None
    mlp_bias: bool | None = False
    window_by_layer: bool = False  # use_sliding_window, max_window_layers and layer_types count


_COMMON = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
_QWEN = _COMMON | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
FAMILIES = {
    "LlamaForCausalLM": Family(
        "llama",
        _COMMON
        | {
            "vocab_size": 32000,
            "intermediate_size": 11008,
            "max_position_embeddings": 2048,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        mlp_bias=None,
    ),
    "MistralForCausalLM": Family(
        "mistral",
        _COMMON
        | {
            "vocab_size": 32000,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        attention_bias=False,
        attention_out_bias=False,
    ),
    "Qwen2ForCausalLM": Family("qwen2", _QWEN, attention_bias=True, attention_out_bias=False, window_by_layer=True),
    "Qwen3ForCausalLM": Family("qwen3", _QWEN | {"head_dim": 128}, qk_norm=True, window_by_layer=True),
}
