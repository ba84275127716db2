"""Self-attention over the paged KV cache: head norms, rotary embedding, store, attend."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..kernels import KernelSet
from .linear import Linear
from .norm import RMSNorm
from .step_input import StepInput

LayerCache = tuple[torch.Tensor, torch.Tensor]  # keys and values, each [num_blocks, num_kv_heads, block_size, head_dim]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None  # tokens a query sees, itself included; None for all


class Attention:
    def __init__(
        self,
        shape: AttentionShape,
        qkv_proj: Linear,
        o_proj: Linear,
        q_norm: RMSNorm | None,
        k_norm: RMSNorm | None,
        cos_sin: torch.Tensor,
        kernels: KernelSet,
    ) -> None:
        """cos_sin: [max_position, head_dim] float32 of `rotary.cos_sin_table`, shared by all layers."""
        self.shape = shape
        self.qkv_proj = qkv_proj
        self.o_proj = o_proj
        self.q_norm = q_norm
        self.k_norm = k_norm
        self._q_norm_weight = None if q_norm is None else q_norm.weight
        self._k_norm_weight = None if k_norm is None else k_norm.weight
        self._norm_eps = 0.0 if q_norm is None else q_norm.eps
        self._cos_sin = cos_sin
        self._scale = shape.head_dim**-0.5
        self._kernels = kernels

    def __call__(
        self, qkv: torch.Tensor, step: StepInput, cache: LayerCache, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """Writes the keys and values of all tokens, then attends.

        qkv: [T, (num_heads + 2 * num_kv_heads) * D], of `qkv_proj`. rows: the tokens whose result is needed; None for
        all. Returns the input of `o_proj` for these rows, [N, num_heads * D].
        """
        shape = self.shape
        k_cache, v_cache = cache
        queries = self._kernels.rope_and_store(
            qkv,
            self._q_norm_weight,
            self._k_norm_weight,
            self._norm_eps,
            self._cos_sin,
            step.positions,
            step.slot_mapping,
            k_cache,
            v_cache,
            shape.num_heads,
            shape.num_kv_heads,
        )
        if (
            rows is not None and len(rows) <= step.num_rows
        ):  # with several tokens of one row it is faster to attend with all
            queries, step, rows = queries[rows], step.of_tokens(rows), None
        attended = self._kernels.paged_attention(queries, k_cache, v_cache, step, self._scale, shape.window)
        return attended if rows is None else attended[rows]
