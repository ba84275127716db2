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
from ..kernels.lora_add import LoraWeights
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
        self._widths, self._in_features = places.widths(product), places.in_features(product)
        self._base, self._tensors, self._pack = base, tensors, places.kernels.pack_lora
        self._dtype, self._rank = dtype, rank
        # Parts of a layer that is fused in the adapter too have the same A.
        self._first_of: dict[StoredMatrix, int] = {}
        self._vectors: dict[str, torch.Tensor] = {}  # the bias and the factors, if there are some

    def read(self, parts: Mapping[int, Change], device: torch.device) -> LoraWeights:
        a = self._read_a(parts)
        first, b, columns, column = [], [], None, 0
        for part, width in enumerate(self._widths):
            start, panels, own = 0, None, slice(column, column + width)
            column += width
            if (change := parts.get(part)) is not None:
                if change.weight is not None and change.weight.rows is not None:
                    columns = self._set_columns(change, a)
                elif change.weight is not None:
                    start, panels = len(a), self._own_weight(change, own)
                elif change.delta is not None:
                    start = self._first_of[change.delta.a]
                    panels = self._b(change.delta, change.place, own)
                self._add_bias(change, own)
            first.append(start)
            b.append(self._pack(torch.empty(width, 0), self._dtype, 1.0, width) if panels is None else panels)
        return LoraWeights(
            a.to(device),
            tuple(first),
            tuple(each.to(device) for each in b),
            **{name: vector.to(device) for name, vector in self._vectors.items()},
            set_columns=None if columns is None else columns.to(device),
        )

    def _vector(self, name: str, value: float) -> torch.Tensor:
        """The bias or the factors, whose elements are `value` at first. [columns of all parts]"""
        return self._vectors.setdefault(name, torch.full((sum(self._widths),), value))

    def _read_a(self, parts: Mapping[int, Change]) -> torch.Tensor:
        """A of all parts, with space for the rows of columns that are set at the end."""
        num_rows = 0
        matrices: list[tuple[LowRank, Place]] = []
        for change in parts.values():
            if change.delta is not None and change.delta.a not in self._first_of:
                self._first_of[change.delta.a] = num_rows
                num_rows += change.delta.rank
                matrices.append((change.delta, change.place))
        num_set = sum(len(self._own_columns(change)[0]) for change in parts.values())
        a = torch.empty(num_rows + num_set, self._in_features, dtype=self._dtype)
        for delta, place in matrices:
            first = self._first_of[delta.a]
            rows = a[first : first + delta.rank]
            if place.slice is None or place.slice.dim != 1:
                self._tensors.read_into(delta.a, rows)
            else:
                rows.copy_(_sliced(self._tensors.matrix(delta.a), place.slice, 1))
        return a

    def _b(self, delta: LowRank, place: Place, own: slice) -> torch.Tensor:
        b = _sliced(self._tensors.matrix(delta.b), place.slice, 0)
        if delta.magnitude is None:
            return self._pack(b, self._dtype, delta.scale, own.stop - own.start)
        b = _padded(b.float() * delta.scale, own.stop - own.start)
        magnitudes = self._rows(delta.magnitude, place, own)[:, 0]
        exact = _sliced(self._tensors.matrix(delta.a), place.slice, 1).float()
        factors = self._vector("factors", 1.0)
        factors[own] = self._magnified(place.name, exact, b, magnitudes)
        return self._pack(b * factors[own, None], self._dtype, 1.0, len(b))

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
        self._vector("factors", 1.0)[own] = 0
        weight = _sliced(self._tensors.matrix(change.weight.values), change.place.slice, 1)
        return self._pack(_sliced(weight, change.place.slice, 0), self._dtype, 1.0, own.stop - own.start)

    def _set_columns(self, change: Change, a: torch.Tensor) -> torch.Tensor:
        """The columns of this process that are the adapter's. Their rows are written to the end of A."""
        assert change.weight is not None, "the caller has found some"
        if self._base is not None and self._base.bias_of(change.place.name) is not None:
            raise ModelFilesError(
                f"the rows of tokens in `{change.place.name}` have biases, which this build does not add", code="M310"
            )
        columns, rows = self._own_columns(change)
        a[len(a) - len(columns) :] = self._tensors.matrix(change.weight.values)[rows].to(self._dtype)
        return columns

    def _own_columns(self, change: Change) -> tuple[torch.Tensor, torch.Tensor]:
        """The columns of this process that are the adapter's, [n] int32, and the rows that it has for them, [n]."""
        if change.weight is None or change.weight.rows is None:
            return torch.empty(0, dtype=torch.int32), torch.empty(0, dtype=torch.int64)
        ids = torch.tensor(change.weight.rows, dtype=torch.int64)
        ranges = [range(sum(self._widths))] if change.place.slice is None else change.place.slice.ranges
        columns, start = torch.full_like(ids, -1), 0
        for each in ranges:
            is_own = (ids >= each.start) & (ids < each.stop)
            columns[is_own] = ids[is_own] - each.start + start
            start += len(each)
        is_own = columns >= 0
        return columns[is_own].to(torch.int32), is_own.nonzero()[:, 0]

    def _add_bias(self, change: Change, own: slice) -> None:
        delta, place = change.delta, change.place
        if place.slice is not None and place.slice.dim == 1 and self._rank:
            return  # inputs are divided: one rank adds biases
        has_factors = "factors" in self._vectors
        before = self._base.bias_of(place.name) if self._base and (change.bias or has_factors) else None
        after = before if change.bias is None else self._rows(change.bias.values, place, own)[:, 0]
        if after is not None:
            self._vector("bias", 0.0)[own] = after
        if before is not None:
            self._vector("bias", 0.0)[own] -= before * self._vector("factors", 1.0)[own] if has_factors else before
        if delta is not None and delta.bias is not None:
            self._vector("bias", 0.0)[own] += self._rows(delta.bias, place, own)[:, 0] * delta.scale

    def _rows(self, stored: StoredMatrix, place: Place, own: slice) -> torch.Tensor:
        """The rows of a matrix with all rows of a weight that this process has, float32."""
        return _padded(_sliced(self._tensors.matrix(stored).float(), place.slice, 0), own.stop - own.start)


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
