"""Layers of a model whose weights are in host memory, and are copied to the device while other layers compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from ...layers.loading import Loadable
from ...layers.mixer import Mixer, Recurrent
from ...models.decoder import Decoder
from ...models.layer_stack import Layer, LayerStep
from ..weight_storages import weights_in
from .host_weights import HostWeights
from .weight_arena import Lanes, WeightArena

Hidden = tuple[torch.Tensor, torch.Tensor | None]


class StreamedLayer:
    """A layer with what must be queued before and after it."""

    def __init__(self, layer: Layer, arena: WeightArena, index: int | None, *, is_first: bool) -> None:
        """index: among the layers of the arena; None for a layer on the device. is_first: of the model."""
        self._layer, self._arena, self._index, self._is_first = layer, arena, index, is_first

    @property
    def mixer(self) -> Mixer | None:
        return self._layer.mixer

    @property
    def recurrents(self) -> Sequence[Recurrent]:
        return self._layer.recurrents

    def loadables(self) -> Iterator[Loadable]:
        return self._layer.loadables()

    def __call__(self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep) -> Hidden:
        if self._is_first:
            self._arena.begin()
        if self._index is None:
            return self._layer(hidden, residual, step)
        self._arena.enter(self._index)
        found = self._layer(hidden, residual, step)
        self._arena.leave(self._index)
        return found


class LayerStreaming:
    """Moves the weights of some layers of a model to host memory, each as soon as it is complete."""

    def __init__(self, model: Decoder, indices: Sequence[int]) -> None:
        """indices: of the layers, ascending."""
        self._model, self._indices = model, indices
        self._layer_of = {id(part): index for index in indices for part in model.layers[index].loadables()}
        self._missing = Counter(self._layer_of.values())
        self._held: dict[int, HostWeights] = {}

    def loaded(self, part: Loadable) -> None:
        """Move the layer of this part to host memory if all its parts are loaded. Call it once for each part of the
        model, in any order, in one thread at a time."""
        index = self._layer_of.get(id(part))
        if index is None:
            return
        self._missing[index] -= 1
        if not self._missing[index]:
            with torch.inference_mode():
                self._held[index] = HostWeights(weights_in(self._model.layers[index].loadables()))

    def start(self, num_places: int, lanes: Lanes) -> WeightArena:
        """Begin streaming after all parts are loaded. Raises ValueError unless there are fewer places than layers."""
        assert not self._missing.total(), f"layers {sorted(+self._missing)} are not loaded"
        model, places = self._model, {index: place for place, index in enumerate(self._indices)}
        with torch.inference_mode():
            arena = WeightArena([self._held[index] for index in self._indices], num_places, lanes)
        weights = [weights_in(layer.loadables()) for layer in model.layers]
        users = Counter(each for of_layer in weights for each in {id(tensor) for tensor in of_layer})
        assert set(users.values()) <= {1}, "a tensor of two layers cannot be moved with one of them"
        model.stack.layers = [
            StreamedLayer(layer, arena, places.get(index), is_first=index == 0)
            if index in places or index == 0
            else layer
            for index, layer in enumerate(model.layers)
        ]
        return arena
