"""Self-attention over the paged KV cache: head norms, rotary embedding, store, attend."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from ..kernels import PLAIN_HEADS, AttentionVariant, HeadVariant, KernelSet
from .block_index import BlockIndex
from .difference import Difference
from .distance_biases import DistanceBiases
from .linear import Linear
from .loading import Loadable
from .mixer import LayerCache
from .norm import LayerNorm, Norm
from .rotary import Rotation
from .step_input import StepInput
from .vector import Vector


@dataclass(frozen=True, slots=True)
class AttentionShape:
    num_heads: int  # of queries; pairs of them, if their outputs are subtracted
    num_kv_heads: int  # whose keys and values it computes
    head_dim: int
    window: int | None  # tokens a query sees, itself included; None for all
    is_chunked: bool = False  # a query sees its own chunk of `window` tokens; False: the last `window` tokens
    softcap: float | None = None  # scores become softcap * tanh(score / softcap)
    scale: float | None = None  # of the scores; None for head_dim ** -0.5
    value_dim: int | None = None  # of what a head returns: its other values are zeros; None for head_dim
    is_causal: bool = True  # False: a query sees all tokens, or `window` tokens before it and as many after it


class Attention:
    def __init__(
        self,
        shape: AttentionShape,
        in_proj: Linear,
        out_proj: Linear,
        q_norm: Norm | None,
        k_norm: Norm | None,
        rotation: Rotation | None,
        kernels: KernelSet,
        *,
        sinks: Vector | None = None,
        slopes: torch.Tensor | None = None,
        biases: DistanceBiases | None = None,
        heads: HeadVariant = PLAIN_HEADS,
        num_gates: int = 0,
        difference: Difference | None = None,
        index: BlockIndex | None = None,
    ) -> None:
        """A layer of the model.

        Args:
            shape: without its own key-value heads, a layer reads the cache that it is given, and writes nothing.
            in_proj: queries, keys and values of all heads, then what the index takes, and the gates of the outputs.
            q_norm, k_norm: as wide as one head, or as all query heads and all key heads; of the same kind and eps.
            rotation: shared by layers with the same rotary embedding; None for a layer without.
            sinks: one per query head.
            slopes: [num_heads] float32, of ALiBi.
            biases: of distances to keys, of attention that is not causal.
            heads: what else differs between models; `is_layer_norm` is about the norms.
            num_gates: the outputs are multiplied by the sigmoids of as many gates, the last outputs of `in_proj`.
            difference: heads are pairs, whose outputs are subtracted.
            index: chooses the tokens of attention, in a layer without what `AttentionVariant` describes.
        """
        if isinstance(q_norm, LayerNorm) and q_norm.bias is not None:
            raise ValueError("the LayerNorm of a head has no bias")
        if rotation is not None and rotation.has_kinds and heads.query_scales is not None:
            raise ValueError("queries that grow with their position have one kind of positions")
        self.shape = shape
        self.in_proj = in_proj
        self.out_proj = out_proj
        self.q_norm = q_norm
        self.k_norm = k_norm
        self.sinks = sinks
        self.biases = biases
        self._q_norm_weight = None if q_norm is None else q_norm.weight
        self._k_norm_weight = None if k_norm is None else k_norm.weight
        self._norm_eps = 0.0 if q_norm is None else q_norm.eps
        self._rotation = rotation
        self._scale = shape.head_dim**-0.5 if shape.scale is None else shape.scale
        self._heads = replace(heads, is_layer_norm=isinstance(q_norm, LayerNorm))
        self._variant = AttentionVariant(
            shape.window, shape.is_chunked, shape.softcap, None if sinks is None else sinks.values, slopes
        )
        self._num_gates, self._index = num_gates, index
        self._index_at = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        self._difference = difference
        self._kernels = kernels

    def set_kv_scales(self, keys: float, values: float) -> None:
        """Set the scales of an fp8 cache, which stores keys and values divided by them, before the first step."""
        self._heads = replace(self._heads, k_scale=keys, v_scale=values)
        self._variant = replace(self._variant, k_scale=keys, v_scale=values)

    def loadables(self) -> Iterator[Loadable]:
        yield self.in_proj
        yield self.out_proj
        yield from (part for part in (self.q_norm, self.k_norm, self.sinks, self.biases) if part is not None)
        if self._difference is not None:
            yield from self._difference.loadables()
        if self._index is not None:
            yield from self._index.loadables()

    def __call__(
        self, projected: torch.Tensor, step: StepInput, cache: LayerCache, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """Write the keys and values of all tokens, then attend. See Mixer."""
        shape = self.shape
        if not shape.is_causal:
            attended = self._attend_whole(projected, step)
            if self._num_gates:
                attended = self._kernels.gate_outputs(attended, projected, self._num_gates)
            return attended if rows is None else attended[rows]
        k_cache, v_cache = cache[:2]
        cos_sin, turns = (None, step.positions) if self._rotation is None else self._rotation.of(step)
        queries = self._kernels.rope_and_store(
            projected,
            self._q_norm_weight,
            self._k_norm_weight,
            self._norm_eps,
            cos_sin,
            turns,
            step.slot_mapping,
            k_cache,
            v_cache,
            shape.num_heads,
            shape.num_kv_heads,
            self._heads,
        )
        chosen: torch.Tensor | None = None
        if self._index is not None:
            own = projected[:, self._index_at : self._index_at + self._index.width]
            chosen = self._index(own, step, cache[2])
        if (
            rows is not None and len(rows) <= step.num_rows
        ):  # with several tokens of one row it is faster to attend with all
            chosen = None if chosen is None else chosen[rows]
            queries, projected, step, rows = queries[rows], projected[rows], step.of_tokens(rows), None
        if self._difference is not None:
            queries = self._difference.of_queries(queries)
        if chosen is None:
            attended = self._kernels.paged_attention(queries, k_cache, v_cache, step, self._scale, self._variant)
        else:
            scale = self._scale * self._variant.k_scale
            attended = self._kernels.sparse_attention(queries, chosen, k_cache, v_cache, step, scale)
            if self._variant.v_scale != 1:
                attended = self._kernels.scale_and_cap(attended, self._variant.v_scale)
        if self._difference is not None:
            attended = self._difference(attended)
        if shape.value_dim is not None:
            heads = attended.view(len(attended) * shape.num_heads, shape.head_dim)
            values = self._kernels.take_columns(heads, 0, shape.value_dim)
            attended = values.view(len(attended), shape.num_heads * shape.value_dim)
        if self._num_gates:
            attended = self._kernels.gate_outputs(attended, projected, self._num_gates)
        return attended if rows is None else attended[rows]

    def _attend_whole(self, projected: torch.Tensor, step: StepInput) -> torch.Tensor:
        """Attend to all tokens of each sequence, which are in this step. Nothing is kept."""
        shape = self.shape
        num_heads, num_kv_heads, head_dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        num_turned = num_heads + num_kv_heads
        heads = projected[:, : (num_turned + num_kv_heads) * head_dim].view(len(projected), -1, head_dim)
        turned, values = heads[:, :num_turned], heads[:, num_turned:]
        if self._rotation is not None or self._q_norm_weight is not None:
            cos_sin, turns = (None, step.positions) if self._rotation is None else self._rotation.of(step)
            # Keys are prepared as further queries: what only prepares queries stores nothing.
            none = projected.new_empty(1, num_kv_heads, 1, head_dim)
            turned = self._kernels.rope_and_store(
                *(projected, self._norms_of_all(), None, self._norm_eps, cos_sin, turns, step.slot_mapping),
                *(none, none, num_turned, 0, self._heads),
            )
        return self._kernels.attend_whole(
            *(turned[:, :num_heads], turned[:, num_heads:], values, step.query_start, self._scale, shape.window),
            self._variant.slopes,
            None if self.biases is None else self.biases.table,
        )

    def _norms_of_all(self) -> torch.Tensor | None:
        """Weights of the norms of all heads of queries and then of keys."""
        if self._q_norm_weight is None or self._k_norm_weight is None:
            return None
        width = self.shape.head_dim
        pairs = (self._q_norm_weight, self.shape.num_heads), (self._k_norm_weight, self.shape.num_kv_heads)
        return torch.cat([weight.view(-1, width).expand(count, width).flatten() for weight, count in pairs])


def alibi_slopes(num_heads: int) -> torch.Tensor:
    """[num_heads] float32. Source: Press et al., arXiv:2108.12409, section 3.

    For other numbers than powers of two: the slopes of the power below, then every second one of the power above.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    exponents = [8 * (head + 1) / power for head in range(power)]
    exponents += [4 * (2 * head + 1) / power for head in range(num_heads - power)]
    return torch.tensor([2**-exponent for exponent in exponents], dtype=torch.float32)


def order_of_groups(num_heads: int, num_kv_heads: int, head_dim: int) -> torch.Tensor:
    """The outputs of `in_proj` in the order of a checkpoint that has the queries of a group, their key and their value
    one after another: to queries, keys, values."""
    queries_per_key = num_heads // num_kv_heads
    rows = torch.arange((num_heads + 2 * num_kv_heads) * head_dim)
    queries, keys, values = torch.split(rows.view(num_kv_heads, -1, head_dim), [queries_per_key, 1, 1], dim=1)
    return torch.cat((queries.flatten(), keys.flatten(), values.flatten()))


def order_of_parts(num_heads: int, head_dim: int, num_parts: int) -> torch.Tensor:
    """The outputs of `in_proj` in the order of a checkpoint of several parts, each queries, values and keys of some
    heads: to queries, keys, values."""
    queries, values, keys = torch.arange(3 * num_heads * head_dim).view(num_parts, 3, -1).unbind(1)
    return torch.cat((queries.flatten(), keys.flatten(), values.flatten()))


def order_with_zeros(num_heads: int, num_kv_heads: int, head_dim: int, value_dim: int) -> torch.Tensor:
    """The outputs of `in_proj` with zeros after the values of each head, up to head_dim."""
    before = torch.arange((num_heads + num_kv_heads) * head_dim)
    values = len(before) + torch.arange(num_kv_heads * value_dim).view(num_kv_heads, value_dim)
    zeros = torch.full((num_kv_heads, head_dim - value_dim), -1)
    return torch.cat((before, torch.cat((values, zeros), 1).flatten()))


def order_of_gates(num_heads: int, num_kv_heads: int, head_dim: int, index_width: int = 0) -> torch.Tensor:
    """The outputs of `in_proj` in the order of a checkpoint whose query projection has the gate of each head after its
    query: to queries, keys, values, outputs of the index, gates. index_width: 0 without an index."""
    queries, gates = torch.arange(2 * num_heads * head_dim).view(num_heads, 2, head_dim).unbind(1)
    first = queries.numel() + gates.numel()
    others = torch.arange(first, first + 2 * num_kv_heads * head_dim + index_width)
    return torch.cat((queries.flatten(), others, gates.flatten()))
