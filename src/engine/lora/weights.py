"""Reads the weights of an adapter and brings them into the layout of the kernels, for the layers of one process.

The scale is multiplied into B, in float32 and before the elements are rounded, so that a step does not know it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import torch

from ...config import ModelFilesError
from ...config.checkpoint.safetensors import read_header
from ...config.checkpoint.stored import FLOAT_DTYPES
from ...input_file import open_file
from ...model.adapter import AdapterSpec, LowRank, StoredMatrix
from ...model.tensor_parallel import Slice
from ..kernels.lora_add import LoraWeights, in_panels
from .places import Place, Places


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    by_layer: dict[int, LoraWeights]  # in the order of Places.layers; layers that it does not change are missing

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self.by_layer.values())


def read_weights(
    spec: AdapterSpec, places: Places, dtype: torch.dtype, device: torch.device, rank: int = 0
) -> AdapterWeights:
    """The part of an adapter that this process needs.

    rank: of this process among those that divide each layer.

    Tensors of layers of other stages are checked too: an error there would come in the middle of a step.

    Raises ModelFilesError, or OSError, for files that cannot be read.
    """
    found: dict[int, dict[int, tuple[LowRank, Place]]] = defaultdict(dict)
    for delta in spec.deltas:
        if (place := places.find(delta.target)) is not None:
            found[place.layer][place.part] = delta, place
    tensors = _Tensors(spec)
    for delta in spec.deltas:
        if places.find(delta.target) is None:
            tensors.check(delta)
    return AdapterWeights(
        {
            layer: _of_layer(parts, places.layers[layer].widths, tensors, dtype, device, rank)
            for layer, parts in sorted(found.items())
        }
    )


def _of_layer(
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
        self._newest: tuple[str, torch.Tensor] | None = None  # stacked experts and fused parts read a tensor repeatedly

    def matrix(self, stored: StoredMatrix) -> torch.Tensor:
        found = self._whole(stored.name).view(stored.view)
        for dim, index in sorted(stored.chosen, reverse=True):
            found = found.select(dim, index)
        if stored.rows is not None:
            found = found[stored.rows[0] : stored.rows[1]]
        if (size := stored.head_dim) is not None:
            found = found.reshape(-1, 2, size // 2, found.shape[1]).transpose(1, 2).reshape(found.shape)
        return found.T if stored.is_transposed else found

    def check(self, delta: LowRank) -> None:
        """Raise what reading its matrices would raise."""
        for stored in (delta.a, delta.b, delta.bias):
            if stored is not None:
                self._whole(stored.name)

    def _whole(self, name: str) -> torch.Tensor:
        if self._newest is None or self._newest[0] != name:
            self._newest = name, self._read(name)
        return self._newest[1]

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
