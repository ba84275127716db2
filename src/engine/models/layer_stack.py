"""LayerStack: consecutive layers of a decoder, all of them or one stage's, and one step through them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from ..kernels.spans import span
from ..layers.loading import Loadable
from ..layers.mixer import LayerCache, Mixer, Recurrent
from ..layers.ngrams import NGrams
from ..layers.step_input import StateInputs, StepInput

Residual = torch.Tensor | None


class LayerStep:
    """One step of one layer, for the rows that are needed."""

    def __init__(
        self,
        step: StepInput,
        cache: LayerCache,
        rows: torch.Tensor | None,
        inputs: torch.Tensor | None = None,
    ) -> None:
        """rows: the tokens whose result is needed; None for all. The cache gets what it keeps of all tokens.
        inputs: of all tokens, [T, W]: of a layer with its own inputs."""
        self._step, self._cache, self._rows, self._inputs = step, cache, rows, inputs
        self.mix = self.mix_of_rows = step.mix  # of all tokens, and of those in `rows`
        if rows is not None and step.mix is not None:
            self.mix_of_rows = step.mix.of_tokens(rows)

    def __call__(self, mixer: Mixer, projected: torch.Tensor, own: slice = slice(None)) -> torch.Tensor:
        """The output of `out_proj`, [N, hidden_size]. own: the tensors of the layer's cache that are the mixer's."""
        return mixer.out_proj(self._mixed(mixer, projected, own, self._rows), self.mix_of_rows)

    def of_all(self, mixer: Mixer, projected: torch.Tensor, own: slice) -> torch.Tensor:
        """The output of `out_proj` for all T tokens, for a second mixer that must see them."""
        return mixer.out_proj(self._mixed(mixer, projected, own, None), self.mix)

    def _mixed(self, mixer: Mixer, projected: torch.Tensor, own: slice, rows: torch.Tensor | None) -> torch.Tensor:
        cache = self._cache[own]
        if self._step.state_inputs is not None and isinstance(mixer, Recurrent):
            self._step.keep_state_inputs(projected, cache)
        return mixer(projected, self._step, cache, rows)

    @property
    def inputs_of_all(self) -> torch.Tensor:
        """[T, W]"""
        assert self._inputs is not None, "a layer without inputs of its own"
        return self._inputs

    @property
    def token_ids(self) -> torch.Tensor:
        """[N] int64"""
        return self.rows_of(self._step.token_ids)

    def with_ngrams(self, ngrams: NGrams, streams: torch.Tensor) -> torch.Tensor:
        """The streams of all tokens, to which the n-grams are added. The last tensor of the layer's cache is theirs."""
        return ngrams(streams, self._step, self._cache[-1:])

    @property
    def inputs(self) -> torch.Tensor:
        """[N, W]"""
        return self.rows_of(self.inputs_of_all)

    def rows_of(self, x: torch.Tensor) -> torch.Tensor:
        return x if self._rows is None else x[self._rows]


class Layer(Protocol):
    """DecoderLayer, HyperLayer, MixerLayer, FeedForwardLayer, SharedBlockLayer, GatedResidualLayer, or one that a
    runner puts around them."""

    @property
    def mixer(self) -> Mixer | None: ...

    @property
    def recurrents(self) -> Sequence[Recurrent]:
        """The parts that keep a state, in the order of their calls."""
        ...

    def loadables(self) -> Iterator[Loadable]: ...

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]: ...


def recurrents_of(*parts: object) -> Sequence[Recurrent]:
    """Select the parts of a layer that keep a state."""
    return [part for part in parts if isinstance(part, Recurrent)]


class LayerStack:
    def __init__(self, layers: list[Layer], first: int, last_full: int) -> None:
        """first: number of the first layer in the model. last_full: of these, the last that computes all tokens of a
        step even if few results are needed."""
        self.layers = layers
        self._first, self._last_full = first, last_full

    def advance(self, inputs: Sequence[StateInputs], steps: Sequence[StepInput]) -> None:
        """Change the recurrent states by the T tokens of a step whose results are not needed.

        inputs: of each part with a state, in the order of their calls. steps: one per layer.
        """
        parts = [(index, part) for index, layer in enumerate(self.layers) for part in layer.recurrents]
        for (index, part), own in zip(parts, inputs, strict=True):
            part.advance(own.values, steps[index], own.cache)

    def __call__(
        self,
        hidden: torch.Tensor,
        residual: Residual,
        steps: Sequence[StepInput],
        caches: Sequence[LayerCache],
        rows: torch.Tensor | None,
        inputs: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, Residual]:
        """Writes what the caches keep of all T tokens. Returns hidden and residual of `rows`.

        hidden, residual: [T, elements of the residual stream]. steps, caches: one per layer; the steps differ in the
        blocks that they use.
        rows: [N] int64, indices of the tokens whose results are needed; None for all. inputs: [T, layers, W], of layers
        with their own inputs.
        """
        last = len(self.layers) - 1
        if (
            rows is not None and len(rows) <= steps[0].num_rows
        ):  # with several of one row it is faster to attend with all
            last = self._last_full
        for index, layer in enumerate(self.layers[: last + 1]):
            own = None if inputs is None else inputs[:, index]
            step = LayerStep(steps[index], caches[index], rows if index == last else None, own)
            with span(f"layers.{self._first + index}"):
                hidden, residual = layer(hidden, residual, step)
        if rows is None or not len(rows):
            return hidden, residual
        narrowed = {view: step.of_tokens(rows) for view, step in {id(step): step for step in steps[last + 1 :]}.items()}
        for index in range(last + 1, len(self.layers)):  # these keep nothing: the other tokens are not needed
            own = None if inputs is None else inputs[rows, index]
            step = LayerStep(narrowed[id(steps[index])], caches[index], None, own)
            with span(f"layers.{self._first + index}"):
                hidden, residual = self.layers[index](hidden, residual, step)
        return hidden, residual
