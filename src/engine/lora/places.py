"""Places: where the deltas of adapters are added in the part of a model that this process computes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ...model.adapted_layers import is_of_expert
from ...model.adapter import AdapterSpec, Replaced
from ...model.tensor_parallel import Slice
from ..api import AdapterError
from ..kernels import KernelSet
from ..kernels.adapt_rows import LoraEmbedding
from ..kernels.lora_add import LoraLayer
from ..kernels.lora_experts import LoraExperts


class FusedLayer(Protocol):
    """What is read of a layer: see layers/linear.py Linear."""

    @property
    def parts(self) -> Mapping[str, int]: ...

    @property
    def in_features(self) -> int: ...

    def rows_of(self, part: str, rows: range) -> torch.Tensor: ...

    def bias_of(self, part: str) -> torch.Tensor | None: ...


class ExpertSizes(Protocol):
    @property
    def held(self) -> Sequence[int]: ...

    @property
    def hidden(self) -> int: ...

    @property
    def inner(self) -> int: ...


class ExpertLayer(Protocol):
    """What is read of a layer of experts: see layers/expert_weights.py Experts."""

    @property
    def sizes(self) -> ExpertSizes: ...

    @property
    def has_gates(self) -> bool: ...

    def products(self, expert: int) -> tuple[tuple[str, ...], str]: ...


@dataclass(frozen=True, slots=True)
class ExpertProduct:
    """The first or the second product of one expert."""

    layer: int  # in the order of the layers of experts
    expert: int  # its place in this process
    is_down: bool


Product = int | ExpertProduct  # of a linear layer, by its index in the order of the layers


@dataclass(frozen=True, slots=True)
class Place:
    """One weight of a product."""

    product: Product
    part: int
    slice: Slice | None  # what this process has of the weight; None: all of it
    name: str  # of the weight, without `.weight`


class Places:
    """The layers of this process, and what is in each slot of adapters. Captured steps read it in place."""

    def __init__(
        self,
        layers: Sequence[FusedLayer],
        others: Collection[str],
        num_slots: int,
        max_rank: int,
        device: torch.device,
        *,
        experts: Sequence[ExpertLayer] = (),
        elsewhere: Collection[str] = (),
        kernels: KernelSet | None = None,
        embedding: LoraEmbedding | None = None,
        multiplier: float = 1.0,
        max_saved_elements: int = 0,
        embedding_elements: int = 0,
        slices: Mapping[str, Slice] | None = None,
        aliases: Mapping[str, str] | None = None,
        is_whole: bool = True,
    ) -> None:
        """
        layers: all of which a step calls with a mix.
        max_rank: the highest rank that an adapter may have.
        others: names of weights that are in other parts of the model, whose products have no deltas.
        experts: layers of experts, each of which stays where it is.
        elsewhere: names of weights that other processes have, which add their deltas.
        kernels: of the model; None: torch's.
        embedding: of the tokens; None in a later stage. multiplier: of its rows.
        max_saved_elements, embedding_elements: see LoraSettings.
        slices: of the weights that this process has a part of, by the names of their tensors.
        aliases: other names of weights.
        is_whole: whether this process has all layers of the model; False of a stage.
        """
        self.layers = [
            LoraLayer(list(each.parts.values()), each.in_features, num_slots, device, max_rank) for each in layers
        ]
        self.experts = [
            LoraExperts(
                len(each.sizes.held), each.sizes.hidden, each.sizes.inner, num_slots, device, has_gates=each.has_gates
            )
            for each in experts
        ]
        self.use(layers, kernels or KernelSet())
        self.embedding, self.multiplier = embedding, multiplier
        self._max_saved_elements, self._embedding_elements = max_saved_elements, embedding_elements
        self.num_slots = num_slots
        self._others, self._is_whole, self._aliases = frozenset(others), is_whole, aliases or {}
        self._elsewhere = frozenset(elsewhere)
        self._places: dict[str, Place] = {}
        for index, each in enumerate(layers):
            for part, name in enumerate(each.parts):
                self._places[name] = Place(index, part, (slices or {}).get(f"{name}.weight"), name)
        for index, experts_of_layer in enumerate(experts):
            for place, expert in enumerate(experts_of_layer.sizes.held):
                gate_up, down = experts_of_layer.products(expert)
                for is_down, names in (False, gate_up), (True, (down,)):
                    product = ExpertProduct(index, place, is_down)
                    for part, name in enumerate(names):
                        self._places[name] = Place(product, part, (slices or {}).get(f"{name}.weight"), name)

    def use(self, base: Sequence[FusedLayer], kernels: KernelSet) -> None:
        """Read adapters with these kernels, and the weights of these layers: other kernels have layers of their own."""
        self.base, self.kernels = base, kernels

    def find(self, target: str) -> Place | None:
        """The place of a weight, by its name in model/tensors.py; None if another process has it."""
        return self._places.get(self._aliases.get(target, target))

    def widths(self, product: Product) -> tuple[int, ...]:
        """Columns of each part of a product."""
        if isinstance(product, int):
            return self.layers[product].widths
        layer = self.experts[product.layer]
        return (layer.hidden,) if product.is_down else layer.gate_up_widths

    def in_features(self, product: Product) -> int:
        if isinstance(product, int):
            return self.layers[product].in_features
        layer = self.experts[product.layer]
        return layer.inner if product.is_down else layer.hidden

    def check(self, spec: AdapterSpec) -> None:
        """Raise AdapterError for an adapter that changes a weight whose product has no deltas, or for which there is no
        memory."""
        planned = self._max_saved_elements
        if isinstance(spec.embedding, Replaced):
            planned += self._embedding_elements
        if spec.num_saved_elements > planned:
            raise _refused(
                spec,
                f"has {spec.num_saved_elements} elements of whole weights or rows of them, and memory is planned for "
                f"{planned}; name it in `lora.modules`, so that the plan counts them",
            )
        for target in (*(delta.target for delta in spec.deltas), *(each.target for each in spec.replaced)):
            if self.find(target) is not None or target in self._elsewhere:
                continue
            if self._is_whole or target in self._others:
                why = ", because experts move between its ranks or replicas" if is_of_expert(target) else ""
                raise _refused(spec, f"changes `{target}`, whose product this engine adds nothing to{why}")
        for delta in spec.deltas:
            place = self.find(delta.target)
            if delta.magnitude is not None and place is not None and place.slice is not None and place.slice.dim == 1:
                raise _refused(
                    spec,
                    f"has magnitudes (DoRA) of `{delta.target}`, whose inputs are divided among ranks, each of which "
                    "would need all of the weight",
                )


def _refused(spec: AdapterSpec, what: str) -> AdapterError:
    return AdapterError(f"{spec.weights}: the adapter {what}", code="unsupported_adapter")
