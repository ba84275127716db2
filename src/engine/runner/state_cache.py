"""StateCache: the recurrent states of running sequences, by slot, and after these the kept ones.

A slot of a sequence without computed tokens holds what another sequence left there: kernels begin with zeros.
"""

from __future__ import annotations

import torch

from ...model.spec import ModelSpec
from ..core.step_plan import Int32
from ..layers.mixer import LayerCache


class StateCache:
    """States of every layer that has one (StateShape in model/spec.py), at each place."""

    def __init__(
        self, spec: ModelSpec, num_places: int, dtype: torch.dtype, sums_dtype: torch.dtype = torch.float32
    ) -> None:
        """Memory that no sequence has used yet is reserved, not resident.

        num_places: slots, and kept states. dtype: of the model.
        """
        self.layers: list[LayerCache | None] = [
            None
            if shape is None
            else (
                torch.zeros(num_places, *shape.inputs, dtype=dtype),
                torch.zeros(num_places if shape.sums else 0, *shape.sums, dtype=sums_dtype),
            )
            for shape in spec.states
        ]

    def copy(self, places: Int32) -> None:
        """places: [n, 2], from and to; no place is in both columns."""
        for source, target in places.tolist():
            for layer in self.layers:
                for tensor in layer or ():
                    if len(tensor):
                        tensor[target].copy_(tensor[source])

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for layer in self.layers if layer is not None for tensor in layer)
