"""A checkpoint directory with random weights, a tokenizer and a chat template: everything but sense."""

from __future__ import annotations

from pathlib import Path

from tests.models.checkpoints import build
from tests.server.tiny_tokenizer import write_tokenizer


def write_checkpoint(folder: Path, *, tokenizer: bool = True) -> Path:
    """Qwen3-shaped, 2 layers, context 128. Greedy answers are fixed: weights come from a fixed seed."""
    build("qwen3", vocab_size=400, eos_token_id=2, bos_token_id=None, pad_token_id=0).save_pretrained(folder)
    if tokenizer:
        write_tokenizer(folder)
    return folder
