"""Weights of some layers in host memory: each is copied to an arena on the device shortly before its layer computes.

The arena has a few places, used in turn, so a layer's weights are at the same address in every step. A step is complete
in itself: its copies begin after the step before and have ended before the step ends. So they can be part of a captured
graph, whose side stream must begin and end within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from .host_weights import HostWeights


class Lanes(Protocol):
    """Two queues of work: one computes, the other copies."""

    def follow(self) -> None:
        """Copies queued from now on wait for the computation that is queued until now."""
        ...

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        """Queues a copy. into, source: [bytes] uint8."""
        ...

    def mark(self, index: int) -> None:
        """Remembers under this index what is queued to be copied until now."""
        ...

    def wait(self, index: int) -> None:
        """Computation queued from now on waits for the copies before the mark."""
        ...


class OneQueue:
    """One queue for copies and computation: both are done at once, in the order of the calls."""

    def follow(self) -> None: ...

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        into.copy_(source)

    def mark(self, index: int) -> None: ...

    def wait(self, index: int) -> None: ...


class CudaLanes:
    """The current stream computes, a second one copies."""

    def __init__(self, device: torch.device, count: int) -> None:
        """count: of the marks."""
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._followed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._marks = [torch.cuda.Event() for _ in range(count)]  # type: ignore[no-untyped-call]

    def follow(self) -> None:
        self._followed.record()
        self._copies.wait_event(self._followed)

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._copies):
            into.copy_(source, non_blocking=True)

    def mark(self, index: int) -> None:
        self._marks[index].record(self._copies)

    def wait(self, index: int) -> None:
        torch.cuda.current_stream().wait_event(self._marks[index])


class WeightArena:
    """Calls must have this order in each step: `begin`, then `enter` and `leave` of each layer, 0 to n - 1."""

    def __init__(self, layers: Sequence[HostWeights], num_places: int, lanes: Lanes) -> None:
        """The tensors of the layers become views of the arena.

        layers: n layers of one device, in the order of use.
        num_places: layers that are on the device at a time, at least 1 and less than n.
        """
        if not 1 <= num_places < len(layers):
            raise ValueError(f"{num_places} places for {len(layers)} layers save no memory")
        self._layers, self._num_places, self._lanes = layers, num_places, lanes
        largest = max(layer.num_bytes for layer in layers)
        self._places = torch.empty(num_places, largest, dtype=torch.uint8, device=layers[0].device)
        for index, layer in enumerate(layers):
            layer.point_to(self._place(index))

    @property
    def host_bytes(self) -> int:
        """Bytes of the layers in host memory. A step copies all of them."""
        return sum(layer.num_bytes for layer in self._layers)

    def begin(self) -> None:
        """Begin the copies of a step, before its first layer, which may be one that is always on the device."""
        self._lanes.follow()  # the last layers of the step before
        for index in range(self._num_places):
            self._fetch(index)

    def enter(self, index: int) -> None:
        self._lanes.wait(index)

    def leave(self, index: int) -> None:
        if index + self._num_places < len(self._layers):
            self._lanes.follow()
            self._fetch(index + self._num_places)

    def _place(self, index: int) -> torch.Tensor:
        return self._places[index % self._num_places]

    def _fetch(self, index: int) -> None:
        layer = self._layers[index]
        parts = torch.split(self._place(index)[: layer.num_bytes], [len(piece) for piece in layer.pieces])
        for part, piece in zip(parts, layer.pieces, strict=True):
            self._lanes.copy(part, piece)
        self._lanes.mark(index)
