"""JoinedLayer: attention reads the embedding of each token beside the stream. EAGLE-3, arXiv:2503.01840."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..kernels import KernelSet
from ..layers.loading import Loadable
from ..layers.mixer import Mixer, Recurrent
from ..layers.norm import AnyNorm
from .decoder_layers import FeedForward
from .layer_stack import LayerStep


class JoinedLayer:
    recurrents: Sequence[Recurrent] = ()  # the mixer is attention

    def __init__(
        self,
        norms: tuple[AnyNorm, AnyNorm, AnyNorm],
        mixer: Mixer,
        mlp: FeedForward,
        kernels: KernelSet,
        *,
        goes_on_normed: bool,
    ) -> None:
        """norms: of the embedding, of the stream, and of the input of `mlp`. mixer: its inputs are twice as wide.
        goes_on_normed: the normed stream is what the layer adds to; False: the stream as it was."""
        self.mixer, self.mlp = mixer, mlp
        self._norms, self._kernels, self._goes_on_normed = norms, kernels, goes_on_normed

    def loadables(self) -> Iterator[Loadable]:
        for norm in self._norms:
            yield from norm.loadables()
        yield from self.mixer.loadables()
        yield from self.mlp.loadables()

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See DecoderLayer. The embeddings are the inputs of the layer."""
        of_embedding, of_stream, of_mlp = self._norms
        embedded, _ = of_embedding(self._kernels, step.inputs_of_all)
        normed, stream = of_stream(self._kernels, hidden, residual)
        joined = self._kernels.join_columns((embedded, normed))
        mixed = step(self.mixer, self.mixer.in_proj(joined, step.mix))
        goes_on = normed if self._goes_on_normed else stream
        return self.mlp(of_mlp, mixed, step.rows_of(goes_on), step.mix_of_rows)
