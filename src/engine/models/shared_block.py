"""A transformer block whose weights several layers share, and a layer with such a block before its own mixer.

Source: Zamba2, arXiv:2411.15242, figure 2.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..kernels import KernelSet
from ..layers.adapter import Adapter
from ..layers.attention import Attention
from ..layers.linear import Linear
from ..layers.loading import Loadable
from ..layers.mixer import Mixer
from ..layers.mlp import GatedMLP
from ..layers.norm import Norm
from .layer_stack import LayerStep, recurrents_of


class SharedBlock:
    """The weights: attention over the stream beside the embedding, and a feed-forward block without a residual."""

    def __init__(self, norms: tuple[Norm, Norm], attention: Attention, mlp: GatedMLP) -> None:
        """norms: of the inputs of the two. attention: its linear layers, as the first layer with the block has them."""
        self.norms, self.attention, self.mlp = norms, attention, mlp

    def loadables(self) -> Iterator[Loadable]:
        yield from self.norms
        yield from self.attention.loadables()
        yield from self.mlp.loadables()


class SharedBlockLayer:
    """A mixer with a state, whose input has the output of a shared block added to the stream."""

    def __init__(
        self,
        block: SharedBlock,
        attention: Attention,
        adapters: tuple[Adapter | None, Adapter | None],
        linear: Linear,
        norm: Norm,
        beside: Mixer,
        kernels: KernelSet,
        *,
        has_weights: bool,
    ) -> None:
        """
        attention: with the block's weights, and the cache of this layer.
        adapters: of queries, keys and values, and of the feed-forward block; None for products that are shared.
        linear: of the block's output.
        norm, beside: the layer's own norm and mixer.
        has_weights: this layer loads the weights of the block.
        """
        self.mixer, self.beside = attention, beside
        self.recurrents = recurrents_of(beside)
        self._block, self._adapters, self._linear, self._norm = block, adapters, linear, norm
        self._kernels, self._has_weights = kernels, has_weights

    def loadables(self) -> Iterator[Loadable]:
        if self._has_weights:
            yield from self._block.loadables()
        for adapter in self._adapters:
            if adapter is not None:
                yield from adapter.loadables()
        yield self._linear
        yield self._norm
        yield from self.beside.loadables()

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See DecoderLayer."""
        stream = hidden if residual is None else self._kernels.add_scaled(hidden, residual)
        added = self._linear(self._of_block(stream, step), step.mix)
        projected, _ = self.beside.in_proj.of_normed(self._norm, added, stream, step.mix)
        return step(self.beside, projected, slice(-2, None)), step.rows_of(stream)

    def _of_block(self, stream: torch.Tensor, step: LayerStep) -> torch.Tensor:
        """The output of the block for all tokens, as the mixer must see them."""
        first, second = self._block.norms
        of_attention, of_mlp = self._adapters
        normed, _ = first(self._kernels, self._kernels.join_columns((stream, step.inputs_of_all)))
        projected = self.mixer.in_proj(normed, step.mix)
        if of_attention is not None:
            projected = of_attention(normed, projected, step.mix)
        normed, _ = second(self._kernels, step.of_all(self.mixer, projected, slice(None, -2)))
        return self._block.mlp.of(normed, step.mix, of_mlp)
