"""Reads the weights of an adapter and brings them into the layout of the kernels, for the layers of one process."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import torch

from ...model.adapter import AdapterSpec, LowRank, Replaced
from ..kernels.adapt_rows import AdaptedRows
from ..kernels.lora_add import LoraWeights
from ..kernels.lora_experts import ExpertLora
from .places import ExpertProduct, Places, Product
from .product import Change, ReadProduct
from .tensors import AdapterTensors


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """What an adapter changes, by the indices of Places.layers and Places.experts. Other layers are missing."""

    by_layer: dict[int, LoraWeights]
    by_experts: dict[int, dict[int, ExpertLora]]  # of each layer, by the places of experts in this process
    embedding: AdaptedRows | None = None

    @property
    def num_bytes(self) -> int:
        experts = sum(each.num_bytes for layer in self.by_experts.values() for each in layer.values())
        embedding = 0 if self.embedding is None else self.embedding.num_bytes
        return sum(each.num_bytes for each in self.by_layer.values()) + experts + embedding


def read_weights(
    spec: AdapterSpec, places: Places, dtype: torch.dtype, device: torch.device, rank: int = 0
) -> AdapterWeights:
    """The part of an adapter that this process needs.

    rank: of this process among those that divide each layer.

    Tensors of layers of other processes are checked too: an error there would come in the middle of a step.

    Raises ModelFilesError, or OSError, for files that cannot be read.
    """
    with AdapterTensors(spec, places.kernels.are_finite) as tensors:
        return _read(spec, places, tensors, dtype, device, rank)


def _read(
    spec: AdapterSpec, places: Places, tensors: AdapterTensors, dtype: torch.dtype, device: torch.device, rank: int
) -> AdapterWeights:
    found: dict[Product, dict[int, Change]] = defaultdict(dict)
    for delta in spec.deltas:
        if (place := places.find(delta.target)) is None:
            tensors.check(delta.a, delta.b, delta.bias, delta.magnitude)
        else:
            found[place.product][place.part] = Change(place, delta)
    for each in spec.replaced:
        if (place := places.find(each.target)) is None:
            tensors.check(each.values)
        else:
            change = found[place.product].setdefault(place.part, Change(place))
            setattr(change, "bias" if each.is_bias else "weight", each)
    by_layer: dict[int, LoraWeights] = {}
    by_experts: dict[int, dict[int, ExpertLora]] = defaultdict(dict)
    for product, parts in found.items():
        if isinstance(product, ExpertProduct):
            layer = by_experts[product.layer]
            own = layer.get(product.expert, ExpertLora(None, None))
            weights = ReadProduct(places, product, None, tensors, dtype, rank).read(parts, device)
            layer[product.expert] = replace(own, **{"down" if product.is_down else "gate_up": weights})
        else:
            reader = ReadProduct(places, product, places.base[product], tensors, dtype, rank)
            by_layer[product] = reader.read(parts, device)
    return AdapterWeights(by_layer, dict(by_experts), _embedding(spec, places, tensors, dtype, device))


def _embedding(
    spec: AdapterSpec, places: Places, tensors: AdapterTensors, dtype: torch.dtype, device: torch.device
) -> AdaptedRows | None:
    own, factor = spec.embedding, places.multiplier
    if own is None:
        return None
    if places.embedding is None:
        tensors.check(*((own.a, own.b) if isinstance(own, LowRank) else (own.values,)))
        return None
    match own:
        case LowRank():
            a = tensors.matrix(own.a).T.to(dtype).contiguous()
            b = places.kernels.pack_lora(tensors.matrix(own.b), dtype, own.scale * factor, own.out_features)
            return AdaptedRows(a=a.to(device), b=b.to(device))
        case Replaced():
            rows = (tensors.matrix(own.values).to(dtype) * factor).to(device).contiguous()
            if own.rows is None:
                return AdaptedRows(rows)
            ids = torch.tensor(own.rows, dtype=torch.int32, device=device)
            order = ids.argsort()
            return AdaptedRows(rows[order].contiguous(), ids[order].contiguous())
