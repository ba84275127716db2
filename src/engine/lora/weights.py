"""Reads the weights of an adapter and brings them into the layout of the kernels, for the layers of one process.

The scale is multiplied into B, in float32 and before the elements are rounded, so that a step does not know it.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, replace

import torch

from ...config import ModelFilesError
from ...config.checkpoint.safetensors import read_header
from ...config.checkpoint.stored import FLOAT_DTYPES
from ...input_file import open_file
from ...model.adapter import AdapterSpec, LowRank, StoredMatrix
from ...model.tensor_parallel import Slice
from ..kernels.lora_add import LoraWeights, in_panels
from ..kernels.lora_experts import ExpertLora
from .places import ExpertProduct, Place, Places, Product

_MAX_KEPT = 8  # tensors in memory while an adapter is read: the two pairs of all experts of a layer, and those before


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """What an adapter adds, by the indices of Places.layers and Places.experts; what it does not change is missing."""

    by_layer: dict[int, LoraWeights]
    by_experts: dict[int, dict[int, ExpertLora]]  # of each layer, by the places of experts in this process

    @property
    def num_bytes(self) -> int:
        experts = sum(each.num_bytes for layer in self.by_experts.values() for each in layer.values())
        return sum(each.num_bytes for each in self.by_layer.values()) + experts


def read_weights(
    spec: AdapterSpec, places: Places, dtype: torch.dtype, device: torch.device, rank: int = 0
) -> AdapterWeights:
    """The part of an adapter that this process needs.

    rank: of this process among those that divide each layer.

    Tensors of layers of other stages are checked too: an error there would come in the middle of a step.

    Raises ModelFilesError, or OSError, for files that cannot be read.
    """
    found: dict[Product, dict[int, tuple[LowRank, Place]]] = defaultdict(dict)
    for delta in spec.deltas:
        if (place := places.find(delta.target)) is not None:
            found[place.product][place.part] = delta, place
    tensors = _Tensors(spec)
    for delta in spec.deltas:
        if places.find(delta.target) is None:
            tensors.check(delta)
    by_layer: dict[int, LoraWeights] = {}
    by_experts: dict[int, dict[int, ExpertLora]] = defaultdict(dict)
    for product, parts in found.items():
        weights = _of_product(parts, places.widths(product), tensors, dtype, device, rank)
        if isinstance(product, ExpertProduct):
            layer = by_experts[product.layer]
            own = layer.get(product.expert, ExpertLora(None, None))
            layer[product.expert] = replace(own, **{"down" if product.is_down else "gate_up": weights})
        else:
            by_layer[product] = weights
    return AdapterWeights(by_layer, dict(by_experts))


def _of_product(
    parts: dict[int, tuple[LowRank, Place]],
    widths: tuple[int, ...],
    tensors: _Tensors,
    dtype: torch.dtype,
    device: torch.device,
    rank: int,
) -> LoraWeights:
    rows: list[torch.Tensor] = []
    first_of: dict[StoredMatrix, int] = {}  # parts of a layer that is fused in the adapter too have the same A
    first: list[int] = []
    b: list[torch.Tensor] = []
    bias = torch.zeros(sum(widths))
    has_bias, num_rows, column = False, 0, 0
    for part, width in enumerate(widths):
        if part not in parts:
            first.append(0)
            b.append(in_panels(torch.empty(width, 0, dtype=dtype)).to(device))
            column += width
            continue
        delta, place = parts[part]
        if delta.a not in first_of:
            first_of[delta.a] = num_rows
            rows.append(_sliced(tensors.matrix(delta.a), place.slice, 1).to(dtype))
            num_rows += delta.rank
        first.append(first_of[delta.a])
        outputs = _padded(_sliced(tensors.matrix(delta.b) * delta.scale, place.slice, 0), width)
        b.append(in_panels(outputs.to(dtype)).to(device))
        is_added_here = place.slice is None or place.slice.dim == 0 or rank == 0  # inputs are divided: one rank adds it
        if delta.bias is not None and is_added_here:
            has_bias = True
            own = _padded(_sliced(tensors.matrix(delta.bias) * delta.scale, place.slice, 0), width)
            bias[column : column + width] = own[:, 0]
        column += width
    return LoraWeights(
        torch.cat(rows).contiguous().to(device), tuple(first), tuple(b), bias.to(device) if has_bias else None
    )


def _sliced(matrix: torch.Tensor, own: Slice | None, dim: int) -> torch.Tensor:
    """The part of a matrix that belongs to this process, if the weight is divided along this dimension.

    matrix: A, whose columns are those of the weight, or B, whose rows are.
    """
    if own is None or own.dim != dim:
        return matrix
    return torch.cat([matrix.narrow(dim, each.start, len(each)) for each in own.ranges], dim=dim)


def _padded(rows: torch.Tensor, count: int) -> torch.Tensor:
    """rows: [n, columns]. Returns `count` rows: what a process has more than its slice of a weight is zeros."""
    missing = rows.new_zeros(count - len(rows), rows.shape[1])
    return torch.cat((rows, missing)) if len(missing) else rows


class _Tensors:
    """The tensors of the file of an adapter, in float32."""

    def __init__(self, spec: AdapterSpec) -> None:
        self._path, self._header = spec.weights, read_header(spec.weights)
        # Stacked experts and fused parts read a tensor repeatedly: the newest ones, with the chosen dimensions first.
        self._kept: OrderedDict[tuple[str, tuple[int, ...], tuple[int, ...]], torch.Tensor] = OrderedDict()

    def matrix(self, stored: StoredMatrix) -> torch.Tensor:
        found = self._arranged(stored)[tuple(index for _, index in stored.chosen)]
        if stored.rows is not None:
            found = found[stored.rows[0] : stored.rows[1]]
        if (size := stored.head_dim) is not None:
            found = found.reshape(-1, 2, size // 2, found.shape[1]).transpose(1, 2).reshape(found.shape)
        return found.T if stored.is_transposed else found

    def check(self, delta: LowRank) -> None:
        """Raise what reading its matrices would raise."""
        for stored in (delta.a, delta.b, delta.bias):
            if stored is not None:
                self._arranged(stored)

    def _arranged(self, stored: StoredMatrix) -> torch.Tensor:
        """A tensor with the dimensions first of which an index is chosen: what is chosen is contiguous then."""
        chosen = tuple(dim for dim, _ in stored.chosen)
        key = stored.name, stored.view, chosen
        if key not in self._kept:
            others = [dim for dim in range(len(stored.view)) if dim not in chosen]
            self._kept[key] = self._read(stored.name).view(stored.view).permute(*chosen, *others).contiguous()
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return self._kept[key]

    def _read(self, name: str) -> torch.Tensor:
        stored = self._header[name]
        dtype = getattr(torch, FLOAT_DTYPES[stored.dtype])
        content = bytearray(math.prod(stored.shape) * dtype.itemsize)
        with open_file(self._path) as file:
            file.seek(stored.offset)
            view, done = memoryview(content), 0
            while done < len(content):
                if not (count := file.readinto(view[done:])):
                    raise EOFError(f"{self._path}: cut short while reading tensor `{name}`")
                done += count
        values = torch.frombuffer(content, dtype=dtype).view(stored.shape).float()
        # The sum of all is finite nearly always, and takes a fraction of the time.
        if not math.isfinite(values.sum().item()) and not values.isfinite().all():
            raise ModelFilesError(
                f"{self._path}: tensor `{name}` has elements that are infinite or not a number", code="M303"
            )
        return values
