"""GatedResidualLayer: a layer of a Decoder with several residual streams."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..layers.gated_residual import GatedResidual
from ..layers.loading import Loadable
from ..layers.mixer import Mixer
from ..layers.ngrams import NGrams
from .decoder_layers import FeedForward
from .layer_stack import LayerStep, recurrents_of


class GatedResidualLayer:
    """hidden is all streams; there is no residual beside them."""

    def __init__(
        self, of_mixer: GatedResidual, mixer: Mixer, of_mlp: GatedResidual, mlp: FeedForward, ngrams: NGrams | None
    ) -> None:
        """ngrams: are added before the mixer."""
        self._of_mixer, self.mixer, self._of_mlp, self.mlp, self._ngrams = of_mixer, mixer, of_mlp, mlp, ngrams
        self.recurrents = recurrents_of(ngrams, mixer)
        self._own = slice(None) if ngrams is None else slice(-1)  # the tensors of the cache that are the mixer's

    def loadables(self) -> Iterator[Loadable]:
        if self._ngrams is not None:
            yield from self._ngrams.loadables()
        yield from self._of_mixer.loadables()
        yield from self.mixer.loadables()
        yield from self._of_mlp.loadables()
        yield from self.mlp.loadables()

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden: [T, streams * hidden_size]. Returns the streams of the rows that `step` returns."""
        streams = hidden if self._ngrams is None else step.with_ngrams(self._ngrams, hidden)
        mixed, normed = self._of_mixer.read(streams, step.mix)
        added = step(self.mixer, self.mixer.in_proj(mixed, step.mix), self._own)
        mix = step.mix_of_rows
        streams = self._of_mixer.add(step.rows_of(streams), added, step.rows_of(normed), mix)
        mixed, normed = self._of_mlp.read(streams, mix)
        return self._of_mlp.add(streams, self.mlp.of(mixed, mix), normed, mix), None
