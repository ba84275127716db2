"""The checkpoint that all writers quantise: small, with random weights and a few large ones, as trained models have.

All sizes are multiples of the usual groups of 32, 64 and 128 and blocks of 128 x 128, except that keys and values
have 64 outputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def write_base(folder: Path) -> Path:
    """Write the model in bfloat16, as most published checkpoints. It is the same every time."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES))
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            weight.data.normal_(0, 0.1 if "embed" in name else weight.shape[1] ** -0.5)
            weight.data[torch.rand_like(weight) < 1e-3] *= 6
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder
