"""Variants of how queries and keys are prepared for attention: which pairs are rotated, and what norms they have."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class HeadVariant:
    """The default is that of Llama and Qwen 3."""

    is_interleaved: bool = (
        False  # the rotated pairs are (2 i, 2 i + 1), as in GPT-J; False: (i, i + R // 2), as in NeoX
    )
    is_layer_norm: bool = False  # norms are LayerNorms; False: RMSNorms
    is_over_all_heads: bool = False  # one norm over all query heads, one over all key heads; False: over each head
    is_norm_last: bool = False  # norms follow the rotation
    has_value_norm: bool = False  # values get a root mean square of one, with the eps of the head norms. Gemma 3n and 4
    query_scales: torch.Tensor | None = None  # [max_position] float32, multiplies the queries at each position

    def __post_init__(self) -> None:
        if self.is_over_all_heads and self.is_norm_last:
            raise ValueError("a norm over all heads precedes the rotation")


PLAIN_HEADS = HeadVariant()


def check_norms(
    q_norm: torch.Tensor | None, k_norm: torch.Tensor | None, num_heads: int, num_kv_heads: int, head_dim: int
) -> bool:
    """Whether each head has weights of its own.

    Raises ValueError if only one of the norms is there, or if a weight fits neither one head nor all of them.
    """
    if q_norm is None or k_norm is None:
        if q_norm is not k_norm:
            raise ValueError("queries and keys must both have norms, or neither")
        return False
    sizes = q_norm.numel(), k_norm.numel()
    if sizes == (head_dim, head_dim):
        return False
    if sizes != (num_heads * head_dim, num_kv_heads * head_dim):
        raise ValueError(
            f"norms of {sizes[0]} and {sizes[1]} weights for {num_heads} and {num_kv_heads} heads of {head_dim}"
        )
    return True
