"""Self-attention over the paged KV cache: head norms, rotary embedding, store, attend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from ..kernels import PLAIN_HEADS, AttentionVariant, HeadVariant, KernelSet
from .linear import Linear
from .loading import Loadable
from .norm import LayerNorm, Norm
from .step_input import StepInput
from .vector import Vector

LayerCache = tuple[torch.Tensor, torch.Tensor]  # keys and values, each [num_blocks, num_kv_heads, block_size, head_dim]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None  # tokens a query sees, itself included; None for all
    is_chunked: bool = False  # a query sees its own chunk of `window` tokens; False: the last `window` tokens
    softcap: float | None = None  # scores become softcap * tanh(score / softcap)
    scale: float | None = None  # of the scores; None for head_dim ** -0.5


class Attention:
    def __init__(
        self,
        shape: AttentionShape,
        qkv_proj: Linear,
        o_proj: Linear,
        q_norm: Norm | None,
        k_norm: Norm | None,
        cos_sin: torch.Tensor | None,
        kernels: KernelSet,
        *,
        sinks: Vector | None = None,
        heads: HeadVariant = PLAIN_HEADS,
    ) -> None:
        """A layer of the model.

        Args:
            q_norm, k_norm: as wide as one head, or as all query heads and all key heads; of the same kind and eps.
            cos_sin: [max_position, rotary_dim] float32 of `rotary.cos_sin_table`, shared by layers with the same
                rotary embedding; None for a layer without.
            sinks: one per query head.
            heads: what else differs between models; `is_layer_norm` is that of the norms.
        """
        if isinstance(q_norm, LayerNorm) and q_norm.bias is not None:
            raise ValueError("the LayerNorm of a head has no bias")
        self.shape = shape
        self.qkv_proj = qkv_proj
        self.o_proj = o_proj
        self.q_norm = q_norm
        self.k_norm = k_norm
        self.sinks = sinks
        self._q_norm_weight = None if q_norm is None else q_norm.weight
        self._k_norm_weight = None if k_norm is None else k_norm.weight
        self._norm_eps = 0.0 if q_norm is None else q_norm.eps
        self._cos_sin = cos_sin
        self._scale = shape.head_dim**-0.5 if shape.scale is None else shape.scale
        self._heads = replace(heads, is_layer_norm=isinstance(q_norm, LayerNorm))
        self._variant = AttentionVariant(
            shape.window, shape.is_chunked, shape.softcap, None if sinks is None else sinks.values
        )
        self._kernels = kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self.qkv_proj
        yield self.o_proj
        yield from (part for part in (self.q_norm, self.k_norm, self.sinks) if part is not None)

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
            self._heads,
        )
        if (
            rows is not None and len(rows) <= step.num_rows
        ):  # with several tokens of one row it is faster to attend with all
            queries, step, rows = queries[rows], step.of_tokens(rows), None
        attended = self._kernels.paged_attention(queries, k_cache, v_cache, step, self._scale, self._variant)
        return attended if rows is None else attended[rows]
