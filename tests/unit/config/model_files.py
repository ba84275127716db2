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
    """A Qwen3-shaped directory; one weight tensor of 1000 numbers stands for all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**QWEN3, **changes}))
    write_safetensors(folder / "model.safetensors", {"model.embed_tokens.weight": [1000]}, dtype)
    if tokenizer:
        (folder / "tokenizer.json").write_text("{}")
    return folder
