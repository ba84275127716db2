"""What libraries that calibrate are given: random tokens, which suit random weights."""

from __future__ import annotations

from .base import SIZES


def texts(count: int, length: int) -> list[list[int]]:
    import torch

    generator = torch.Generator().manual_seed(0)
    rows: list[list[int]] = torch.randint(0, SIZES["vocab_size"], (count, length), generator=generator).tolist()
    return rows
