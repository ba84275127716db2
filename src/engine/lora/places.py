"""Places: where the deltas of adapters are added in the part of a model that this process computes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ...model.adapter import AdapterSpec
from ...model.tensor_parallel import Slice
from ..api import AdapterError
from ..kernels.lora_add import LoraLayer


class FusedLayer(Protocol):
    """What is read of a layer: see layers/linear.py Linear."""

    @property
    def parts(self) -> Mapping[str, int]: ...

    @property
    def in_features(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Place:
    """One part of a fused layer."""

    layer: int  # in the order of the layers
    part: int
    slice: Slice | None  # what this process has of the weight; None: all of it


class Places:
    """The fused layers of this process, and what is in each slot of adapters. Captured steps read it in place."""

    def __init__(
        self,
        layers: Sequence[FusedLayer],
        others: Collection[str],
        num_slots: int,
        max_rank: int,
        device: torch.device,
        *,
        slices: Mapping[str, Slice] | None = None,
        aliases: Mapping[str, str] | None = None,
        is_whole: bool = True,
    ) -> None:
        """
        layers: all of which a step calls with a mix.
        max_rank: the highest rank that an adapter may have.
        others: names of weights that are in other parts of the model, whose products have no deltas.
        slices: of the weights that this process has a part of, by the names of their tensors.
        aliases: other names of weights.
        is_whole: whether this process has all layers of the model; False of a stage.
        """
        self.layers = [
            LoraLayer(list(each.parts.values()), each.in_features, num_slots, device, max_rank) for each in layers
        ]
        self.num_slots = num_slots
        self._others, self._is_whole, self._aliases = frozenset(others), is_whole, aliases or {}
        self._places: dict[str, Place] = {}
        for index, each in enumerate(layers):
            for part, name in enumerate(each.parts):
                self._places[name] = Place(index, part, (slices or {}).get(f"{name}.weight"))

    def find(self, target: str) -> Place | None:
        """The place of a weight, by its name in model/tensors.py; None if another stage has it."""
        return self._places.get(self._aliases.get(target, target))

    def check(self, spec: AdapterSpec) -> None:
        """Raise AdapterError for an adapter that changes a weight whose product has no deltas."""
        for delta in spec.deltas:
            if self.find(delta.target) is None and (self._is_whole or delta.target in self._others):
                raise AdapterError(
                    f"{spec.weights}: the adapter changes `{delta.target}`, whose product this engine adds nothing to",
                    code="unsupported_adapter",
                )
