"""Variants of attention that models use: which keys a query sees, and what happens to scores before the softmax."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class AttentionVariant:
    """All are off by default; one that is off costs nothing."""

    window: int | None = None  # how many tokens a query sees, itself included
    is_chunked: bool = False  # a query sees its own chunk of `window` tokens, up to itself. Llama 4
    softcap: float | None = None  # scores become softcap * tanh(score / softcap). Gemma 2, arXiv:2408.00118
    sinks: torch.Tensor | None = None  # [num_heads] float32, a score without a value per head. arXiv:2309.17453
    slopes: torch.Tensor | None = None  # [num_heads] float32, times the distance to a key. ALiBi, arXiv:2108.12409
    k_scale: float = 1.0  # factors of keys and values in an fp8 cache, which were divided by them (head_variant.py)
    v_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window is {self.window}; allowed: at least 1")
        if self.is_chunked and self.window is None:
            raise ValueError("is_chunked needs a window, the length of a chunk")
        if self.softcap is not None and self.softcap <= 0:
            raise ValueError(f"softcap is {self.softcap}; allowed: greater than 0")

    def first_visible(self, position: int) -> int:
        """The first token that a query at this position sees."""
        if self.window is None:
            return 0
        if self.is_chunked:
            return position // self.window * self.window
        return max(0, position - self.window + 1)


PLAIN = AttentionVariant()
