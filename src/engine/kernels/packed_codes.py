"""Grouped weights (grouped.py) as rows of packed codes, the layout of the GPU kernels (gpu/grouped.py).

The two halves of a group are read together. Codes of 4 bits: byte j of a group of G inputs has code j in its lower half
and code j + G / 2 in its upper half. Of 6 bits, the lower 4 are packed so; the upper 2 are a separate plane, whose
byte j has those of the inputs j, j + G / 4, j + G / 2 and j + 3 * G / 4, the first lowest. Codes of 8 bits are bytes.
6 bits packed are 25 % fewer bytes than a byte for each code, and kernels read them with two loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from .grouped import Grouped, GroupScales, stacked

_SLICE_ELEMENTS = 1 << 24  # codes that are packed at once
_STEPS, _SIZES = torch.arange(256.0), torch.arange(128.0)
_E4M3 = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()  # without NaN
_E2M1 = torch.tensor((0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0))

Levels = Literal["steps", "signed", "e4m3", "e2m1", "table"]


@dataclass(frozen=True, slots=True)
class PackedCodes:
    """Codes of a matrix on one device.

    `kind` says how the level of a code is found. steps: code + first, an integer. signed: a sign and 7 bits of size,
    size + first. e4m3, e2m1: the float of these bits. table: levels[code].
    """

    bits: int
    group: int
    codes: torch.Tensor  # [out, in / 2] uint8; of 8 bits [out, in]
    upper: torch.Tensor | None  # [out, in / 4] uint8, of 6 bits
    scales: GroupScales
    zeros: torch.Tensor | None  # [out, groups] bfloat16, which holds them exactly
    minima: GroupScales | None
    order: torch.Tensor | None  # [in] int32: column i is input order[i]
    levels: torch.Tensor  # [16], [64] or [256] float32
    kind: Levels
    first: float

    @property
    def num_bytes(self) -> int:
        """Bytes of codes, scales and offsets: GroupLayout.row_bytes."""
        tensors = (self.codes, self.upper, self.zeros)
        numbers = (self.scales, self.minima)
        return sum(each.nbytes for each in tensors if each is not None) + sum(
            each.num_bytes for each in numbers if each is not None
        )


def packed_codes(parts: Sequence[Grouped], device: torch.device) -> PackedCodes:
    """Packs the matrices of all parts, which have the same format, as one matrix with the outputs of each in order."""
    weight = stacked(parts)
    (outputs, inputs), bits = weight.shape, weight.bits
    codes = torch.empty(outputs, inputs if bits == 8 else inputs // 2, dtype=torch.uint8, device=device)
    upper = torch.empty(outputs, inputs // 4, dtype=torch.uint8, device=device) if bits == 6 else None
    step = max(1, _SLICE_ELEMENTS // inputs)
    for start in range(0, outputs, step):
        rows = slice(start, start + step)
        given = weight.codes[rows].to(device)
        codes[rows] = given if bits == 8 else _together(given & 15, weight.group, 2)
        if upper is not None:
            upper[rows] = _together(given >> 4, weight.group, 4)
    kind, first = _kind(weight.levels)
    return PackedCodes(
        bits=bits,
        group=weight.group,
        codes=codes,
        upper=upper,
        scales=_on(device, weight.scales),
        zeros=None if weight.zeros is None else weight.zeros.to(device, torch.bfloat16).contiguous(),
        minima=None if weight.minima is None else _on(device, weight.minima),
        order=None if weight.order is None else weight.order.to(device, torch.int32).contiguous(),
        levels=weight.levels.to(device).contiguous(),
        kind=kind,
        first=first,
    )


def _together(codes: torch.Tensor, group: int, count: int) -> torch.Tensor:
    """codes: [rows, in], of 8 / count bits. Returns [rows, in / count]: the parts of each group in one byte."""
    parts = codes.view(len(codes), -1, count, group // count).unbind(2)
    packed = parts[0].clone()
    for place, part in enumerate(parts[1:], 1):
        packed |= part << (place * 8 // count)
    return packed.flatten(1)


def _on(device: torch.device, scales: GroupScales) -> GroupScales:
    outer = None if scales.outer is None else scales.outer.to(device).contiguous()
    return GroupScales(scales.values.to(device).contiguous(), outer)


def _kind(levels: torch.Tensor) -> tuple[Levels, float]:
    """The kind of levels, and the first one."""
    levels, first = levels.cpu(), float(levels[0])
    if len(levels) < 256 and first.is_integer() and torch.equal(levels, _STEPS[: len(levels)] + first):
        return "steps", first
    half = len(levels) // 2
    if not torch.equal(levels[half:], -levels[:half]):
        return "table", first
    if half == 128 and torch.equal(levels[:half], _SIZES + first):
        return "signed", first
    if half == 128 and torch.equal(levels[:127], _E4M3):
        return "e4m3", first
    return ("e2m1" if half == 8 and torch.equal(levels[:half], _E2M1) else "table"), first
