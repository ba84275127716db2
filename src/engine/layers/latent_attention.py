"""Latent attention: one compressed vector per token in the cache, over which all heads attend. arXiv:2405.04434.

Keys and values of the heads are linear in the compressed vector, so they are not computed: the matrices that would make
them are applied to the queries and to the results of attention (docs/design/decisions/0017).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import torch

from ...model.mixers import LatentAttention as LatentSpec
from ..kernels import KernelSet
from .linear import Linear
from .loading import Held, Loadable, TensorReader, tensor_of
from .mixer import LayerCache
from .norm import RMSNorm
from .step_input import StepInput
from .token_index import TokenIndex
from .vector import Vector


def gates_after_queries(num_heads: int, width: int, value_dim: int) -> torch.Tensor:
    """The outputs of a projection that has the gates of each head after its query: to queries, gates."""
    heads = torch.arange(num_heads * (width + value_dim)).view(num_heads, width + value_dim)
    return torch.cat((heads[:, :width].flatten(), heads[:, width:].flatten()))


class HeadMatrices:
    """`kv_b_proj`, as the matrices of each head's keys and values; in the model's dtype, not quantised."""

    def __init__(self, name: str, spec: LatentSpec, dtype: torch.dtype, device: torch.device) -> None:
        self._name, self._plain_dim = name, spec.plain_dim
        heads, rank = spec.num_heads, spec.rank
        self._shape = heads * (spec.plain_dim + spec.value_dim), rank
        self.keys = torch.empty(heads, spec.plain_dim, rank, dtype=dtype, device=device)
        self.values = torch.empty(heads, rank, spec.value_dim, dtype=dtype, device=device)

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{self._name}.weight", self._shape

    def load(self, tensors: TensorReader) -> None:
        whole = self.keys.new_empty(self._shape)
        tensors.read(f"{self._name}.weight", whole)
        heads = whole.view(len(self.keys), -1, self._shape[1])
        self.keys.copy_(heads[:, : self._plain_dim])
        self.values.copy_(heads[:, self._plain_dim :].transpose(1, 2))

    def take_weights(self, other: Self) -> None:
        self.keys, self.values = other.keys, other.values

    def held(self) -> Held:
        return {"keys": self.keys, "values": self.values}

    def hold(self, held: Held) -> None:
        self.keys, self.values = tensor_of(held, "keys", self.keys), tensor_of(held, "values", self.values)

    @property
    def num_bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


class LatentAttention:
    def __init__(
        self,
        spec: LatentSpec,
        in_proj: Linear,
        out_proj: Linear,
        q_norm: RMSNorm | None,
        q_proj: Linear | None,
        kv_norm: RMSNorm,
        key_norm: RMSNorm | None,
        heads: HeadMatrices,
        index: TokenIndex | None,
        sinks: Vector | None,
        cos_sin: torch.Tensor,
        kernels: KernelSet,
    ) -> None:
        """A layer of the model.

        Args:
            in_proj: queries or their compressed vectors, then the compressed vectors of keys and values, then the keys
                with positions; at its end the gates of the outputs, if there are some.
            q_norm, q_proj: of the queries' compressed vectors; None if queries are not compressed. If gates come with
                the queries, `q_proj` has them at its end, and reads the normed vectors and then these as they were.
            key_norm: of the keys with positions; None: there is none.
            index: chooses the tokens of attention; `in_proj` then has the keys and weights of the index at its end.
            sinks: one per head.
            cos_sin: [max_position, rope_dim] float32 of `rotary.cos_sin_table`.
        """
        self.in_proj = in_proj
        self.out_proj = out_proj
        self._q_norm, self._q_proj = q_norm, q_proj
        self._kv_norm, self._key_norm = kv_norm, key_norm
        self._heads = heads
        self._index, self._sinks = index, sinks
        self._rank, self._window = spec.rank, spec.window
        self._query_width = spec.query_rank or spec.num_heads * (spec.plain_dim + spec.rope_dim)
        self._index_at = self._query_width + spec.rank + spec.rope_dim
        self._scale = (spec.plain_dim + spec.rope_dim) ** -0.5 if spec.scale is None else spec.scale
        self._num_gates = spec.num_gates
        self._has_gates_with_queries = spec.gate == "with_queries"
        self._cos_sin = cos_sin
        self._is_interleaved = spec.rope is not None and spec.rope.is_interleaved
        self._kernels = kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self.in_proj
        yield from (part for part in (self._q_norm, self._q_proj) if part is not None)
        yield self._kv_norm
        if self._key_norm is not None:
            yield self._key_norm
        yield self._heads
        if self._index is not None:
            yield from self._index.loadables()
        if self._sinks is not None:
            yield self._sinks
        yield self.out_proj

    def __call__(
        self, projected: torch.Tensor, step: StepInput, cache: LayerCache, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """Write the latents of all tokens, then attend. See Mixer."""
        (latents,) = cache
        queries = self._kernels.store_latents(
            projected,
            None if self._q_norm is None else self._q_norm.weight,
            self._kv_norm.weight,
            self._kv_norm.eps,
            self._cos_sin,
            self._is_interleaved,
            step.positions,
            step.slot_mapping,
            latents,
            self._query_width,
            None if self._key_norm is None else self._key_norm.weight,
        )
        chosen = None
        if self._index is not None:
            chosen = self._index(projected[:, self._index_at :], queries, step, latents)
        if rows is not None and len(rows) <= step.num_rows:  # else it is faster to attend with all, as in attention.py
            chosen = None if chosen is None else chosen[rows]
            queries, projected, step, rows = queries[rows], projected[rows], step.of_tokens(rows), None
        if self._has_gates_with_queries:
            queries = torch.cat((queries, projected[:, : self._query_width]), 1)
        if self._q_proj is not None:
            queries = self._q_proj(queries, step.mix)
        absorbed = self._kernels.absorb_queries(
            queries, self._heads.keys, self._cos_sin, self._is_interleaved, step.positions
        )
        how = self._scale, self._rank, None if self._sinks is None else self._sinks.values
        if chosen is None:
            attended = self._kernels.latent_attention(absorbed, latents, step, *how, self._window)
        else:
            attended = self._kernels.sparse_latent_attention(absorbed, chosen, latents, step, *how)
        out = self._kernels.expand_values(attended, self._heads.values)
        if self._num_gates:
            gates = queries if self._has_gates_with_queries else projected
            out = self._kernels.gate_outputs(out, gates, self._num_gates)
        return out if rows is None else out[rows]
