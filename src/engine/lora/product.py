"""Reads what an adapter has for the product of one layer, in the layout of the kernels.

The scale is multiplied into B, in float32 and before the elements are rounded, so that a step does not know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ...config import ModelFilesError
from ...model.adapter import LowRank, Replaced, StoredMatrix
from ...model.tensor_parallel import Slice
from ..kernels.lora_add import LoraWeights, in_panels
from .places import FusedLayer, Place, Places, Product
from .tensors import AdapterTensors

_ROWS_AT_ONCE = 4096  # of a weight whose rows are measured


@dataclass(slots=True)
class Change:
    """What an adapter changes of one part of a product."""

    place: Place
    delta: LowRank | None = None
    weight: Replaced | None = None
    bias: Replaced | None = None


class ReadProduct:
    """Reads what an adapter has for one product: for a linear layer, or for one of those of an expert.

    The sums are those of the layer and the adapter in one expression, where W and b are the layer's weight and bias:

        factor * (x @ W.T + b) + x @ A.T @ (factor * B).T + bias - factor * b

    The factor is 1, the adapter's magnitude of a row over the length of that of W + B @ A (DoRA), or 0 where the
    adapter has a weight of its own, which is B then, without A. The bias is b or the adapter's.
    """

    def __init__(
        self,
        places: Places,
        product: Product,
        base: FusedLayer | None,
        tensors: AdapterTensors,
        dtype: torch.dtype,
        rank: int,
    ) -> None:
        """base: None of an expert, whose own weights are not read."""
        self._widths, self._base, self._tensors = places.widths(product), base, tensors
        self._dtype, self._rank = dtype, rank
        self._a: list[torch.Tensor] = []
        self._first_of: dict[
            StoredMatrix, int
        ] = {}  # parts of a layer that is fused in the adapter too have the same A
        self._num_rows = 0
        self._bias, self._factors = torch.zeros(sum(self._widths)), torch.ones(sum(self._widths))

    def read(self, parts: Mapping[int, Change], device: torch.device) -> LoraWeights:
        first, b, columns, column = [], [], None, 0
        for part, width in enumerate(self._widths):
            start, matrix, own = 0, torch.empty(width, 0), slice(column, column + width)
            column += width
            if (change := parts.get(part)) is not None:
                if change.weight is not None and change.weight.rows is not None:
                    columns = self._set_columns(change)
                elif change.weight is not None:
                    start, matrix = -1, self._own_weight(change, own)
                elif change.delta is not None:
                    start, matrix = self._delta(change.delta, change.place, own)
                self._add_bias(change, own)
            first.append(start)
            b.append(in_panels(matrix.to(self._dtype)).to(device))
        # Columns that are set are the last rows of A; the inputs themselves follow these.
        a = torch.cat(self._a) if self._a else torch.empty(0, self._in_features(parts), dtype=self._dtype)
        return LoraWeights(
            a.contiguous().to(device),
            tuple(len(a) if start < 0 else start for start in first),
            tuple(b),
            self._bias.to(device) if bool(self._bias.any()) else None,
            self._factors.to(device) if bool((self._factors != 1).any()) else None,
            None if columns is None else columns.to(device),
        )

    def _in_features(self, parts: Mapping[int, Change]) -> int:
        assert self._base is not None, "an expert has deltas only"
        return self._base.in_features

    def _delta(self, delta: LowRank, place: Place, own: slice) -> tuple[int, torch.Tensor]:
        """The first row of A, and B."""
        a = _sliced(self._tensors.matrix(delta.a), place.slice, 1)
        if delta.a not in self._first_of:
            self._first_of[delta.a] = self._num_rows
            self._a.append(a.to(self._dtype))
            self._num_rows += delta.rank
        b = self._rows(self._tensors.matrix(delta.b) * delta.scale, place, own)
        if delta.magnitude is not None:
            magnitudes = self._rows(self._tensors.matrix(delta.magnitude), place, own)[:, 0]
            self._factors[own] = self._magnified(place.name, a, b, magnitudes)
            b = b * self._factors[own, None]
        return self._first_of[delta.a], b

    def _magnified(self, name: str, a: torch.Tensor, b: torch.Tensor, magnitudes: torch.Tensor) -> torch.Tensor:
        """The magnitudes over the lengths of the rows of W + B @ A. [rows]; 1 of rows that are zeros."""
        assert self._base is not None, "experts have no magnitudes"
        lengths = torch.empty(len(b))
        for start in range(0, len(b), _ROWS_AT_ONCE):
            rows = range(start, min(start + _ROWS_AT_ONCE, len(b)))
            lengths[start : rows.stop] = (self._base.rows_of(name, rows) + b[start : rows.stop] @ a).norm(dim=1)
        return torch.where(lengths > 0, magnitudes / lengths, 1.0)

    def _own_weight(self, change: Change, own: slice) -> torch.Tensor:
        assert change.weight is not None, "the caller has found one"
        self._factors[own] = 0
        return self._rows(_sliced(self._tensors.matrix(change.weight.values), change.place.slice, 1), change.place, own)

    def _set_columns(self, change: Change) -> torch.Tensor:
        """The columns of this process that are the adapter's. Their rows are added to A."""
        assert change.weight is not None, "the caller has found some"
        assert change.weight.rows is not None, "the caller has found some"
        name = change.place.name
        if self._base is not None and self._base.bias_of(name) is not None:
            raise ModelFilesError(
                f"the rows of tokens in `{name}` have biases, which this build does not add", code="M310"
            )
        ids = torch.tensor(change.weight.rows)
        ranges = [range(sum(self._widths))] if change.place.slice is None else change.place.slice.ranges
        places, start = torch.full_like(ids, -1), 0
        for each in ranges:
            is_own = (ids >= each.start) & (ids < each.stop)
            places[is_own] = ids[is_own] - each.start + start
            start += len(each)
        self._a.append(self._tensors.matrix(change.weight.values)[places >= 0].to(self._dtype))
        self._num_rows += len(self._a[-1])
        return places[places >= 0].to(torch.int32)

    def _add_bias(self, change: Change, own: slice) -> None:
        delta, place = change.delta, change.place
        if place.slice is not None and place.slice.dim == 1 and self._rank:
            return  # inputs are divided: one rank adds biases
        if delta is not None and delta.bias is not None:
            self._bias[own] += self._rows(self._tensors.matrix(delta.bias) * delta.scale, place, own)[:, 0]
        is_own = change.bias is not None or bool((self._factors[own] != 1).any())
        before = self._base.bias_of(place.name) if is_own and self._base is not None else None
        if before is not None:
            self._bias[own] -= self._factors[own] * before
        if change.bias is not None:
            self._bias[own] += self._rows(self._tensors.matrix(change.bias.values), place, own)[:, 0]
        elif before is not None:
            self._bias[own] += before

    def _rows(self, matrix: torch.Tensor, place: Place, own: slice) -> torch.Tensor:
        """The rows of a matrix with all rows of a weight that this process has."""
        return _padded(_sliced(matrix, place.slice, 0), own.stop - own.start)


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
