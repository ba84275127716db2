"""A checkpoint directory with random weights, a tokenizer and a chat template: everything but sense."""

from __future__ import annotations

from pathlib import Path

from tests.models.checkpoints import build
from tests.tiny_tokenizer import write_tokenizer


def write_checkpoint(folder: Path, *, tokenizer: bool = True, context: int = 128) -> Path:
    """Qwen3-shaped, 2 layers. Greedy answers are fixed: weights come from a fixed seed."""
    ids = {"vocab_size": 400, "eos_token_id": 2, "bos_token_id": None, "pad_token_id": 0}
    build("qwen3", max_position_embeddings=context, **ids).save_pretrained(folder)
    if tokenizer:
        write_tokenizer(folder)
    return folder
