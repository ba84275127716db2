"""Attention over a window of tokens and over compressed vectors of those before: one vector is key and value of all
heads (DeepSeek-V4). ../kernels/compressed_attention.py says what is kept of a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ...model.mixers import CompressedAttention as CompressedSpec
from ..kernels import Compression, KernelSet
from .block_matrix import BlockMatrix
from .linear import Linear
from .loading import Loadable
from .mixer import LayerCache
from .norm import RMSNorm
from .step_input import StepInput
from .vector import Vector


class PositionBias(Vector):
    """What is added to the gates of a compressor: [rate, width], by the place of a token in its group."""

    def __init__(self, name: str, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(name, shape, dtype, device, is_exact=True)
        self.by_place = self.values.view(shape)


@dataclass(frozen=True, slots=True)
class Compressor:
    """Makes the vectors of groups of tokens, or those of the index.

    index_proj: queries of the index; None of those of attention.
    """

    bias: PositionBias
    norm: RMSNorm
    index_proj: Linear | None = None

    def loadables(self) -> Iterator[Loadable]:
        yield self.bias
        yield self.norm
        if self.index_proj is not None:
            yield self.index_proj

    def compression(self, spec: CompressedSpec) -> Compression:
        return Compression(spec.rate, spec.overlaps, self.bias.by_place, self.norm.weight, self.norm.eps)


class CompressedAttention:
    def __init__(
        self,
        spec: CompressedSpec,
        in_proj: Linear,
        groups: BlockMatrix,
        out_proj: Linear,
        q_norm: RMSNorm,
        q_proj: Linear,
        k_norm: RMSNorm,
        sinks: Vector,
        compressors: tuple[Compressor, ...],
        cos_sin: torch.Tensor,
        kernels: KernelSet,
    ) -> None:
        """A layer of the model.

        Args:
            in_proj: compressed queries, keys, then the inputs of each compressor and, at the end, the weights of the
                heads of the index.
            groups: matrices that make the inputs of out_proj of what the heads return.
            compressors: none without compressed vectors; that of attention, and that of the index if it has one.
            cos_sin: [max_position, R] float32 of `rotary.cos_sin_table`.
        """
        self.in_proj = in_proj
        self.out_proj = out_proj
        self._spec = spec
        self._groups, self._q_norm, self._q_proj, self._k_norm, self._sinks = groups, q_norm, q_proj, k_norm, sinks
        self._compressors = compressors
        self._compressions = [compressor.compression(spec) for compressor in compressors]
        self._cos_sin = cos_sin
        self._kernels = kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self.in_proj
        yield from (self._q_norm, self._q_proj, self._k_norm, self._sinks)
        for compressor in self._compressors:
            yield from compressor.loadables()
        yield self._groups
        yield self.out_proj

    def __call__(
        self, projected: torch.Tensor, step: StepInput, cache: LayerCache, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """Compress, then attend. See Mixer."""
        out = self._attend(projected, step, cache)
        out = out if rows is None else out[rows]
        groups = out.view(len(out), self._spec.out_groups, self._spec.group_width)
        return self._kernels.expand_values(groups, self._groups.values)

    def advance(self, inputs: torch.Tensor, step: StepInput, cache: LayerCache) -> None:
        """See Recurrent. The kernel that attends also keeps the keys of the window, so queries are computed too."""
        self._attend(inputs, step, cache)

    def _attend(self, projected: torch.Tensor, step: StepInput, cache: LayerCache) -> torch.Tensor:
        """What the heads return, [T, num_heads, head_dim]."""
        spec, kernels = self._spec, self._kernels
        *vectors, window, inputs = cache
        paged = vectors[0] if vectors else None
        latents, _ = self._q_norm(kernels, kernels.take_columns(projected, 0, spec.query_rank))
        queries = self._q_proj(latents, step.mix).view(-1, spec.num_heads, spec.head_dim)
        queries = kernels.norm_and_turn(queries, None, spec.norm_eps, self._cos_sin, step.positions)
        keys = kernels.take_columns(projected, spec.query_rank, spec.head_dim)
        keys = kernels.norm_and_turn(keys[:, None], self._k_norm.weight, spec.norm_eps, self._cos_sin, step.positions)[
            :, 0
        ]
        chosen = None if paged is None else self._compress(projected, latents, step, paged, inputs)
        return kernels.attend_compressed(
            queries, keys, self._sinks.values, window, paged, spec.rate, chosen, self._cos_sin, step
        )

    def _compress(
        self, projected: torch.Tensor, latents: torch.Tensor, step: StepInput, paged: torch.Tensor, inputs: torch.Tensor
    ) -> torch.Tensor | None:
        """The vectors that each query attends to; None for all."""
        spec, kernels = self._spec, self._kernels
        column, kept, place = spec.query_rank + spec.head_dim, 0, 0
        for compression in self._compressions:
            width = 2 * compression.bias.shape[1]
            own = projected[:, column : column + width], inputs[..., kept : kept + width]
            kernels.compress_tokens(own[0], compression, self._cos_sin, own[1], paged, place, step)
            column, kept, place = column + width, kept + width, place + compression.dim
        is_all = step.max_context_len // spec.rate <= spec.index_topk and not kernels.always_chooses
        if not spec.index_heads or is_all:
            return None
        proj = self._compressors[1].index_proj
        assert proj is not None
        queries = proj(latents, step.mix).view(-1, spec.index_heads, spec.index_dim)
        queries = kernels.norm_and_turn(queries, None, None, self._cos_sin, step.positions)
        weights = projected[:, column : column + spec.index_heads]
        return kernels.choose_compressed(queries, weights, paged, spec.rate, spec.head_dim, step, spec.index_topk)
