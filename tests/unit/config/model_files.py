"""Model directories without torch: config.json and safetensors files whose weights are zeros."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

BYTES = {"F32": 4, "BF16": 2, "F16": 2}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 100,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "eos_token_id": 5,
    "dtype": "bfloat16",
}


LAYER = {
    "input_layernorm": [16],
    "self_attn.q_proj": [32, 16],
    "self_attn.k_proj": [16, 16],
    "self_attn.v_proj": [16, 16],
    "self_attn.o_proj": [16, 32],
    "self_attn.q_norm": [8],
    "self_attn.k_norm": [8],
    "post_attention_layernorm": [16],
    "mlp.gate_proj": [32, 16],
    "mlp.up_proj": [32, 16],
    "mlp.down_proj": [16, 32],
}
TENSORS = {
    "model.embed_tokens.weight": [100, 16],
    **{f"model.layers.{index}.{name}.weight": shape for index in (0, 1) for name, shape in LAYER.items()},
    "model.norm.weight": [16],
}


def write_safetensors(path: Path, shapes: dict[str, list[int]], dtype: str = "BF16") -> Path:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, shape in shapes.items():
        size = math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(position))
    return path


def write_model(folder: Path, dtype: str = "BF16", *, tokenizer: bool = True, **changes: Any) -> Path:
    """A Qwen3-shaped directory, whatever `changes` say: 7856 parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**QWEN3, **changes}))
    write_safetensors(folder / "model.safetensors", TENSORS, dtype)
    if tokenizer:
        (folder / "tokenizer.json").write_text("{}")
    return folder
