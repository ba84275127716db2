"""The layers of a Decoder: a mixer and a feed-forward block with their norms, or only one of the two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ...model.spec import EVEN_SUMS, NormPlaces, SumWeights
from ..kernels import KernelSet
from ..layers.expert_lists import ListedExperts
from ..layers.experts import ExpertsBesideMLP, MixtureOfExperts
from ..layers.hyper_connections import HyperConnection
from ..layers.layer_input import LayerInput
from ..layers.loading import Loadable
from ..layers.mixer import Mixer, Recurrent
from ..layers.mlp import MLP, GatedMLP
from ..layers.norm import AnyNorm
from ..layers.vector import Scalar
from .layer_stack import LayerStep, recurrents_of

FeedForward = GatedMLP | MLP | MixtureOfExperts | ExpertsBesideMLP


class DecoderLayer:
    """One layer. hidden is what the layer before adds to the residual stream; without a residual it is the stream."""

    def __init__(
        self,
        places: NormPlaces,
        norms: Sequence[AnyNorm],
        mixer: Mixer,
        mlp: FeedForward,
        kernels: KernelSet,
        residual_scale: float,
        beside: Mixer | None = None,
        own_input: LayerInput | None = None,
        scalar: Scalar | None = None,
        sum_weights: SumWeights = EVEN_SUMS,
    ) -> None:
        """norms: in the order of their use, as LAYER_NORMS names them. residual_scale: of what the parts add.
        scalar: multiplies what the layer adds to the stream, and the stream itself. sum_weights: where it is normed."""
        self.norms = norms
        self.mixer = mixer
        self.beside = beside
        self.mlp = mlp
        self.own_input = own_input
        self.scalar = scalar
        self._kernels = kernels
        self._scale, self._sum_weights = residual_scale, sum_weights
        ways = {
            "inputs": self._of_inputs if residual_scale == 1 else self._of_scaled,
            "outputs": self._of_outputs,
            "both": self._of_both,
            "common": self._of_common,
            "parallel": self._of_parallel,
            "stream": self._of_stream,
            "sums": self._of_sums,
            "feed_forward": self._of_feed_forward,
        }
        self._forward = ways[places] if beside is None else self._of_two_mixers
        self.recurrents = recurrents_of(mixer, beside)

    def loadables(self) -> Iterator[Loadable]:
        for norm in self.norms:
            yield from norm.loadables()
        if self.scalar is not None:
            yield self.scalar
        yield from self.mixer.loadables()
        if self.beside is not None:
            yield from self.beside.loadables()
        yield from self.mlp.loadables()
        if self.own_input is not None:
            yield from self.own_input.loadables()

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden, residual: [T, hidden_size]. Returns both, of the rows that `step` returns."""
        hidden, residual = self._forward(hidden, residual, step)
        if self.own_input is not None:
            residual = self._sum(hidden, residual)
            hidden = self.own_input(residual, step.inputs, step.mix_of_rows)
        if self.scalar is None:
            return hidden, residual
        return self._kernels.scale_and_cap(self._sum(hidden, residual), self.scalar.value), None

    def _sum(self, hidden: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        return hidden if residual is None else self._kernels.add_scaled(hidden, residual)

    def _of_inputs(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        projected, residual = self.mixer.in_proj.of_normed(self.norms[0], hidden, residual, step.mix)
        return self.mlp(self.norms[1], step(self.mixer, projected), step.rows_of(residual), step.mix_of_rows)

    def _of_two_mixers(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert self.beside is not None
        normed, stream = self.norms[0](self._kernels, hidden, residual)
        first = step(self.mixer, self.mixer.in_proj(normed, step.mix), slice(None, -2))
        second = step(
            self.beside, self.beside.in_proj(normed, step.mix), slice(-2, None)
        )  # of a state, after those of attention
        return self.mlp(self.norms[1], second, self._kernels.add_scaled(first, step.rows_of(stream)), step.mix_of_rows)

    def _of_scaled(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        projected, stream = self.mixer.in_proj.of_normed(self.norms[0], hidden, residual, step.mix)
        stream = self._kernels.add_scaled(step(self.mixer, projected), step.rows_of(stream), self._scale)
        added, stream = self.mlp(self.norms[1], stream, None, step.mix_of_rows)
        return self._kernels.add_scaled(added, stream, self._scale), None

    def _of_outputs(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        stream = hidden if residual is None else self._kernels.add_scaled(hidden, residual)
        mixed, _ = self.norms[0](self._kernels, step(self.mixer, self.mixer.in_proj(stream, step.mix)))
        stream = self._kernels.add_scaled(mixed, step.rows_of(stream))
        added, _ = self.norms[1](self._kernels, self.mlp.of(stream, step.mix_of_rows))
        return added, stream

    def _of_both(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        projected, residual = self.mixer.in_proj.of_normed(self.norms[0], hidden, residual, step.mix)
        mixed, _ = self.norms[1](self._kernels, step(self.mixer, projected))
        added, stream = self.mlp(self.norms[2], mixed, step.rows_of(residual), step.mix_of_rows)
        return self.norms[3](self._kernels, added)[0], stream

    def _of_common(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        normed, residual = self.norms[0](self._kernels, hidden, residual)
        mixed = step(self.mixer, self.mixer.in_proj(normed, step.mix))
        added = self.mlp.of(step.rows_of(normed), step.mix_of_rows)
        return self._kernels.add_scaled(mixed, added), step.rows_of(residual)

    def _of_parallel(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        projected, residual = self.mixer.in_proj.of_normed(self.norms[0], hidden, residual, step.mix)
        stream = step.rows_of(residual)
        mixed = step(self.mixer, projected)
        added, _ = self.mlp(self.norms[1], stream, None, step.mix_of_rows)
        return self._kernels.add_scaled(mixed, added), stream

    def _of_stream(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        stream, _ = self.norms[0](self._kernels, hidden, residual)
        mixed = step(self.mixer, self.mixer.in_proj(stream, step.mix))
        total = self._weighted(mixed, step.rows_of(stream), self._sum_weights.mixer)
        stream, _ = self.norms[1](self._kernels, total)
        added = self.mlp.of(stream, step.mix_of_rows)
        return self._weighted(added, stream, self._sum_weights.feed_forward), None

    def _of_sums(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert residual is None, "the layer before has normed its sum"
        mixed = step(self.mixer, self.mixer.in_proj(hidden, step.mix))
        stream, _ = self.norms[0](self._kernels, mixed, step.rows_of(hidden))
        added = self.mlp.of(stream, step.mix_of_rows)
        return self.norms[1](self._kernels, added, stream)[0], None

    def _of_feed_forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        stream = self._sum(hidden, residual)
        mixed = step(self.mixer, self.mixer.in_proj(stream, step.mix))
        return self.mlp(self.norms[0], mixed, step.rows_of(stream), step.mix_of_rows)

    def _weighted(self, added: torch.Tensor, stream: torch.Tensor, weights: tuple[float, float]) -> torch.Tensor:
        of_stream, of_added = weights
        if of_stream != 1:
            stream = self._kernels.scale_and_cap(stream, of_stream)
        return self._kernels.add_scaled(added, stream, of_added)


class HyperLayer:
    """A layer with hyper-connections: hidden is all residual streams, beside which there is no residual."""

    def __init__(
        self,
        connections: Sequence[HyperConnection],
        norms: Sequence[AnyNorm],
        mixer: Mixer,
        mlp: FeedForward | ListedExperts,
        kernels: KernelSet,
    ) -> None:
        """connections, norms: of the mixer, and of the feed-forward block."""
        self.connections, self.norms = connections, norms
        self.mixer, self.mlp = mixer, mlp
        self.recurrents = recurrents_of(mixer)
        self._kernels = kernels

    def loadables(self) -> Iterator[Loadable]:
        yield from self.connections
        for norm in self.norms:
            yield from norm.loadables()
        yield from self.mixer.loadables()
        yield from self.mlp.loadables()

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden: [T, streams * hidden_size]. Returns the streams of the rows that `step` returns, and None."""
        read, write = self._kernels.read_streams, self._kernels.write_streams
        of_mixer, of_mlp = (connection.weights for connection in self.connections)
        count = of_mixer.num_streams
        x, gains = read(hidden, of_mixer)
        projected, _ = self.mixer.in_proj.of_normed(self.norms[0], x, None, step.mix)
        streams = write(step(self.mixer, projected), count, step.rows_of(hidden), step.rows_of(gains))
        x, gains = read(streams, of_mlp)
        return write(self._feed_forward(x, step), count, streams, gains), None

    def _feed_forward(self, x: torch.Tensor, step: LayerStep) -> torch.Tensor:
        if isinstance(self.mlp, ListedExperts):
            normed, _ = self.norms[1](self._kernels, x)
            return self.mlp.of(normed, step.token_ids, step.mix_of_rows)
        return self.mlp(self.norms[1], x, None, step.mix_of_rows)[0]


class MixerLayer:
    """A layer without a feed-forward block."""

    def __init__(self, norm: AnyNorm, mixer: Mixer) -> None:
        self.norm, self.mixer = norm, mixer
        self.recurrents = recurrents_of(mixer)

    def loadables(self) -> Iterator[Loadable]:
        yield from self.norm.loadables()
        yield from self.mixer.loadables()

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See DecoderLayer."""
        projected, stream = self.mixer.in_proj.of_normed(self.norm, hidden, residual, step.mix)
        return step(self.mixer, projected), step.rows_of(stream)


class FeedForwardLayer:
    """A layer without a mixer."""

    mixer: Mixer | None = None
    recurrents: Sequence[Recurrent] = ()

    def __init__(self, norm: AnyNorm, mlp: FeedForward) -> None:
        self.norm, self.mlp = norm, mlp

    def loadables(self) -> Iterator[Loadable]:
        yield from self.norm.loadables()
        yield from self.mlp.loadables()

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See DecoderLayer."""
        residual = None if residual is None else step.rows_of(residual)
        return self.mlp(self.norm, step.rows_of(hidden), residual, step.mix_of_rows)
