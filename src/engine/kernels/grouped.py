"""Grouped: a quantised matrix of a checkpoint as codes and scales of groups of inputs, and its product in torch.

The one form in which the packed weights of all checkpoints reach the kernels: element [o, i] of the matrix is

    (levels[codes[o, i]] - zeros[o, g]) * scales[o, g] - minima[o, g],   g = i // group

with levels and zeros that bfloat16 holds exactly, so that products of bfloat16 are those of the checkpoint's own
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch

from ...model.quantised import GroupLayout
from .stored_codes import StoredCodes

_SLICE_ELEMENTS = 1 << 22  # of float32, computed at once


@dataclass(frozen=True, slots=True)
class GroupScales:
    """A number for each output and group of inputs."""

    values: torch.Tensor  # [out, groups]: float32, float16 or bfloat16; uint8 or int8 with `outer`
    outer: torch.Tensor | None = None  # [out, outer groups], float16 or float32: factors of equally many groups each

    def rows(self, rows: slice | torch.Tensor) -> GroupScales:
        return GroupScales(self.values[rows], None if self.outer is None else self.outer[rows])

    def times(self, factor: float) -> GroupScales:
        """Multiply the scales; they are rounded to the type of the factors, or of the scales if they have none."""
        if self.outer is None:
            return GroupScales((self.values.float() * factor).to(self.values.dtype))
        return GroupScales(self.values, (self.outer.float() * factor).to(self.outer.dtype))

    @property
    def numbers(self) -> torch.Tensor:
        """[out, groups] float32."""
        if self.outer is None:
            return self.values.float()
        factors = self.outer.float().repeat_interleave(self.values.shape[1] // self.outer.shape[1], dim=1)
        return self.values.float() * factors

    @property
    def num_bytes(self) -> int:
        return self.values.nbytes + (0 if self.outer is None else self.outer.nbytes)


@dataclass(frozen=True)
class Grouped:
    """levels: 16 for codes of up to 4 bits, 64 up to 6, 256 for 8, whose second half is the first negated.

    zeros and minima are not used together.
    """

    codes: torch.Tensor | StoredCodes  # [out, in] uint8
    levels: torch.Tensor  # [16], [64] or [256] float32
    scales: GroupScales
    zeros: torch.Tensor | None = None  # [out, groups] float32
    minima: GroupScales | None = None
    order: torch.Tensor | None = None  # [in] int64: column i of the codes is input order[i]; None: as they are

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def unpacked(self) -> torch.Tensor:
        """[out, in] uint8."""
        return self.codes if isinstance(self.codes, torch.Tensor) else self.codes.unpack()

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.shape[1] // self.scales.values.shape[1]

    @property
    def bits(self) -> int:
        """Number of bits that kernels hold of a code."""
        return {16: 4, 64: 6, 256: 8}[len(self.levels)]

    @cached_property
    def places(self) -> torch.Tensor | None:
        """[in]: the column of each input; None: its own."""
        return None if self.order is None else torch.argsort(self.order)

    @property
    def num_bytes(self) -> int:
        """Bytes as they are here, one for each code."""
        minima = 0 if self.minima is None else self.minima.num_bytes
        return self.codes.nbytes + self.scales.num_bytes + (0 if self.zeros is None else self.zeros.nbytes) + minima

    def rows(self, rows: slice | torch.Tensor) -> Grouped:
        """Some outputs, in the order given."""
        return replace(
            self,
            codes=self.codes[rows],
            scales=self.scales.rows(rows),
            zeros=None if self.zeros is None else self.zeros[rows],
            minima=None if self.minima is None else self.minima.rows(rows),
        )

    def times(self, factor: float) -> Grouped:
        """Multiply the matrix, whose scales are rounded: GroupScales.times."""
        minima = None if self.minima is None else self.minima.times(factor)
        return replace(self, scales=self.scales.times(factor), minima=minima)

    def numbers(self) -> torch.Tensor:
        """[out, in] float32, the inputs in their own order."""
        scales = self.scales.numbers.repeat_interleave(self.group, dim=1)
        numbers = self.levels[self.unpacked.int()]
        if self.zeros is not None:
            numbers = numbers - self.zeros.repeat_interleave(self.group, dim=1)
        numbers = numbers * scales
        if self.minima is not None:
            numbers = numbers - self.minima.numbers.repeat_interleave(self.group, dim=1)
        return numbers if self.places is None else numbers[:, self.places]


def layout_of(weight: Grouped) -> GroupLayout:
    outer = weight.scales.outer
    offset: Literal["", "zeros", "minima"] = "" if weight.minima is None else "minima"
    return GroupLayout(
        bits=weight.bits,
        group=weight.group,
        scale=weight.scales.values.itemsize,
        outer=0 if outer is None else outer.itemsize,
        outer_group=0 if outer is None else weight.shape[1] // outer.shape[1],
        offset=offset if weight.zeros is None else "zeros",
    )


def kernels_take(weight: Grouped) -> bool:
    """Whether a layout of it exists; its minima must be stored as its scales are."""
    minima = weight.minima
    return not layout_of(weight).problem(weight.shape[1]) and (minima is None or _kind(minima) == _kind(weight.scales))


def are_alike(parts: Sequence[Grouped]) -> bool:
    """Whether `stacked` takes them: the same levels, groups, types and order of inputs."""
    first = parts[0]
    return all(
        len(part.levels) == len(first.levels)
        and torch.equal(part.levels, first.levels)
        and part.group == first.group
        and _kind(part.scales) == _kind(first.scales)
        and (part.zeros is None) == (first.zeros is None)
        and _kind(part.minima) == _kind(first.minima)
        and (part.order is None) == (first.order is None)
        and (part.order is None or first.order is None or torch.equal(part.order, first.order))
        for part in parts[1:]
    )


def _kind(scales: GroupScales | None) -> object:
    if scales is None:
        return None
    outer = scales.outer
    return scales.values.dtype, None if outer is None else (outer.dtype, scales.values.shape[1] // outer.shape[1])


def stacked(parts: Sequence[Grouped]) -> Grouped:
    """One matrix with the outputs of all parts, which are alike."""

    def scales(found: Sequence[GroupScales]) -> GroupScales:
        outers = [each.outer for each in found if each.outer is not None]
        return GroupScales(torch.cat([each.values for each in found]), torch.cat(outers) if outers else None)

    zeros = [part.zeros for part in parts if part.zeros is not None]
    minima = [part.minima for part in parts if part.minima is not None]
    return replace(
        parts[0],
        codes=torch.cat([part.unpacked for part in parts]),
        scales=scales([part.scales for part in parts]),
        zeros=torch.cat(zeros) if zeros else None,
        minima=scales(minima) if minima else None,
    )


def grouped_linear_reference(x: torch.Tensor, weight: Grouped, bias: torch.Tensor | None) -> torch.Tensor:
    """x: [T, in]. Returns x @ numbers.T + bias, [T, out] in x's dtype; sums in float32."""
    out = x.new_empty(x.shape[0], weight.shape[0])
    wide = x.float()
    for rows in _slices(weight.shape):
        product = wide @ weight.rows(rows).numbers().T
        out[:, rows] = product if bias is None else product + bias[rows].float()
    return out


def grouped_rows_reference(token_ids: torch.Tensor, weight: Grouped, dtype: torch.dtype) -> torch.Tensor:
    """Rows of the matrix: [T, in] in `dtype`. token_ids: [T] int64."""
    return weight.rows(token_ids).numbers().to(dtype)


def _slices(shape: tuple[int, int]) -> Iterator[slice]:
    step = max(1, _SLICE_ELEMENTS // max(1, shape[1]))
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))
