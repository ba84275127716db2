"""Tiny random checkpoints of every family, saved by transformers, and transformers itself as the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB = 97
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama with biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 32},
    "mistral": {"model_type": "mistral", "sliding_window": 6},
    "qwen2": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen2 tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "qwen3 untied": {"model_type": "qwen3", "head_dim": 8, "num_key_value_heads": 1},
}


def build(family: str, **changes: Any) -> PreTrainedModel:
    """A float32 model whose logits are spread out, so that a wrong number gives a wrong token."""
    settings = {**COMMON, **FAMILIES[family], **changes}
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return model


def save(model: PreTrainedModel, folder: Path, **how: Any) -> Path:
    model.save_pretrained(folder, **how)
    return folder


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """[len(token_ids), vocab] in float32."""
    logits: torch.Tensor = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits.float()


@torch.inference_mode()
def reference_greedy(model: PreTrainedModel, prompt: list[int], max_tokens: int) -> list[int]:
    """What `generate` appends, up to and with the first eos."""
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False)
    generated: list[int] = out[0, len(prompt) :].tolist()
    return generated
