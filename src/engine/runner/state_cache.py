"""StateCache: the recurrent states of running sequences, by slot, and after these the kept ones.

A slot of a sequence without computed tokens holds what another sequence left there: kernels begin with zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from ...model.mixers import StateShape
from ...model.spec import ModelSpec
from ..layers.mixer import LayerCache
from ..step.plan import Int32


class Zeros(Protocol):
    """A function like torch.zeros."""

    def __call__(self, size: Sequence[int], /, *, dtype: torch.dtype) -> torch.Tensor: ...


class StateCache:
    """States of every layer that has one (StateShape in model/mixers.py), at each place."""

    def __init__(
        self,
        spec: ModelSpec,
        num_places: int,
        dtype: torch.dtype,
        sums_dtype: torch.dtype = torch.float32,
        zeros: Zeros = torch.zeros,
    ) -> None:
        """Host memory that no sequence has used yet is reserved, not resident.

        num_places: slots, and kept states. dtype: of the model. zeros: makes the memory.

        Raises torch.OutOfMemoryError if the device has too little memory.
        """
        # One tensor for all layers whose states have the same shape, [layers, places, ...]: one operation copies a
        # place.
        self._tensors: list[torch.Tensor] = []
        of_shape: dict[StateShape, Iterator[LayerCache]] = {}
        for shape, count in Counter(shape for shape in spec.states if shape is not None).items():
            inputs = zeros((count, num_places if shape.inputs else 0, *shape.inputs), dtype=dtype)
            sums = zeros((count, num_places if shape.sums else 0, *shape.sums), dtype=sums_dtype)
            own = [inputs, sums]
            if shape.beside:
                own.append(zeros((count, num_places, *shape.beside), dtype=dtype))
            self._tensors += own
            of_shape[shape] = zip(*own, strict=True)
        self.layers: list[LayerCache | None] = [
            None if shape is None else next(of_shape[shape]) for shape in spec.states
        ]

    def copy(self, places: Int32) -> None:
        """places: [n, 2], from and to; no place is in both columns.

        On a GPU this is queued, and needs no memory: an operation for each place, which reads and writes the states of
        all layers. One operation for all places would first gather them into memory of their size.
        """
        for source, target in places.tolist():
            for tensor in self._tensors:
                if tensor.shape[1]:
                    tensor[:, target].copy_(tensor[:, source])

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors)
