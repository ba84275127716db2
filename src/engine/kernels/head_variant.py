"""Variants of how queries and keys are prepared for attention: which pairs are rotated, and what norms they have."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class HeadVariant:
    """The default is for Llama and Qwen 3."""

    is_interleaved: bool = (
        False  # the rotated pairs are (2 i, 2 i + 1), as in GPT-J; False: (i, i + R // 2), as in NeoX
    )
    is_layer_norm: bool = False  # norms are LayerNorms; False: RMSNorms
    is_over_all_heads: bool = False  # one norm over all query heads, one over all key heads; False: over each head
    is_norm_last: bool = False  # norms follow the rotation
    has_value_norm: bool = False  # values get a root mean square of one, with the eps of the head norms. Gemma 3n and 4
    query_scales: torch.Tensor | None = None  # [max_position] float32, multiplies the queries at each position
    values_are_keys: bool = False  # values are the keys before norm and rotation: the projection has them once. Gemma 4
    k_scale: float = 1.0  # keys and values are divided by these when an fp8 cache stores them
    v_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.is_over_all_heads and self.is_norm_last:
            raise ValueError("a norm over all heads precedes the rotation")

    def num_parts(self, num_heads: int, num_kv_heads: int) -> int:
        """Heads of queries, keys and values in the output of the projection."""
        return num_heads + (1 if self.values_are_keys else 2) * num_kv_heads


PLAIN_HEADS = HeadVariant()


def check_norms(
    q_norm: torch.Tensor | None, k_norm: torch.Tensor | None, num_heads: int, num_kv_heads: int, head_dim: int
) -> bool:
    """Whether each head has its own weights. num_kv_heads: 0 if only queries are prepared.

    Raises ValueError if only one of the norms is there, or if a weight fits neither one head nor all of them.
    """
    if num_kv_heads and (q_norm is None) is not (k_norm is None):
        raise ValueError("queries and keys must both have norms, or neither")
    if q_norm is None:
        return False
    sizes = q_norm.numel(), 0 if k_norm is None else k_norm.numel()
    if sizes == (head_dim, head_dim if num_kv_heads else 0):
        return False
    if sizes != (num_heads * head_dim, num_kv_heads * head_dim):
        raise ValueError(
            f"norms of {sizes[0]} and {sizes[1]} weights for {num_heads} and {num_kv_heads} heads of {head_dim}"
        )
    return True
