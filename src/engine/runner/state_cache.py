"""StateCache: the recurrent states of running sequences, by slot.

A slot of a sequence without computed tokens holds what another sequence left there: kernels begin with zeros.
"""

from __future__ import annotations

import torch

from ...model.spec import ModelSpec
from ..layers.mixer import LayerCache


class StateCache:
    """States of every layer that has one (StateShape in model/spec.py), for all slots."""

    def __init__(self, spec: ModelSpec, num_slots: int, dtype: torch.dtype) -> None:
        """Memory that no sequence has used yet is reserved, not resident. dtype: of the model."""
        self.layers: list[LayerCache | None] = [
            None
            if shape is None
            else (
                torch.zeros(num_slots, *shape.inputs, dtype=dtype),
                torch.zeros(num_slots if shape.sums else 0, *shape.sums, dtype=torch.float32),
            )
            for shape in spec.states
        ]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for layer in self.layers if layer is not None for tensor in layer)
