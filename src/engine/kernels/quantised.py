"""Quantised weights in plain torch: the codes, their layout (cpu/quantised.h), and the product over them.

The reference of the C++ kernels, and the implementation where they cannot be used: without a compiler, with
`model.enforce_eager`, and for widths that are not a multiple of 32. Matrices are dequantised a slice at a time, so that
there is never a full second copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from ...model.quantised import CODES_DEEP, GROUP, PANEL_WIDTH

LEVELS = (-127, -100, -80, -62, -47, -33, -20, -7, 5, 18, 31, 44, 59, 74, 92, 115)  # cpu/quantised.h
STRETCHES = (1.0, 0.8, 0.85, 0.9, 0.95, 1.05, 1.1, 1.15)  # cpu/quantise.cpp
_SHIFTS = tuple(k % 2 * 16 + k // 2 * 4 for k in range(CODES_DEEP))
_SMALLEST = 1e-36  # magnitudes below are zero: 127 / magnitude would be infinite
_SLICE_ELEMENTS = 1 << 22  # dequantised at once: 16 MiB of float32
_QUANTISED_ELEMENTS = 1 << 18  # quantised at once: 1 MiB of float32, and about ten temporaries of that size


class Integers(NamedTuple):
    """A matrix of a checkpoint whose inputs are rounded to int8 too, a row at a time."""

    codes: torch.Tensor  # [out, in] int8
    scales: torch.Tensor  # [out] float32


def quantise_reference(weight: torch.Tensor, scheme: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of [out_features, in_features], in panels of 16 outputs.

    Returns for int8 codes [P, in_features, 16] int8 and scales [P, 16] float32; for int4 codes [P, in_features / 8, 16]
    int32, eight codes in each, and scales [P, in_features / 64, 16] bfloat16, both rounded up.
    """
    parts = [
        (_int8 if scheme == "int8" else _int4)(weight[rows.start : rows.stop].float())
        for rows in _slices(weight.shape, _QUANTISED_ELEMENTS)
    ]
    codes, scales = zip(*parts, strict=True)
    return torch.cat(codes), torch.cat(scales)


def dequantise_reference(codes: torch.Tensor, scales: torch.Tensor, in_features: int) -> torch.Tensor:
    """The float32 values that codes and scales of whole panels represent: [16 * P, in_features]."""
    if codes.dtype == torch.int8:
        return (codes.float() * scales[:, None]).transpose(1, 2).reshape(-1, in_features)
    values = _levels_of(codes).transpose(2, 3).reshape(codes.shape[0], -1, PANEL_WIDTH)[:, :in_features]
    values = values * scales.float().repeat_interleave(GROUP, dim=1)[:, :in_features]
    return values.transpose(1, 2).reshape(-1, in_features)


def quantised_linear_reference(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    """x: [T, in_features]. Returns [T, out_features] in x's dtype; sums in float32."""
    out = x.new_empty(x.shape[0], out_features)
    wide = x.float()
    for rows in _slices((out_features, x.shape[1])):
        panels = slice(rows.start // PANEL_WIDTH, -(-rows.stop // PANEL_WIDTH))
        weight = dequantise_reference(codes[panels], scales[panels], x.shape[1])[: len(rows)]
        product = wide @ weight.T
        out[:, rows.start : rows.stop] = product if bias is None else product + bias[rows.start : rows.stop].float()
    return out


def rounded_rows_reference(x: torch.Tensor) -> torch.Tensor:
    """x: [T, in_features]. Returns the float32 values of its rows in int8, with one scale each (integer_products.h).

    A row with an infinite element or NaN is NaN.
    """
    wide = x.float()
    scales = wide.abs().amax(-1, keepdim=True) / 127
    codes = (wide * torch.where(scales > _SMALLEST / 127, 1 / scales, 0.0)).round()
    return codes * torch.where(scales.isfinite(), scales, torch.nan)


def quantised_rows_reference(
    token_ids: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, in_features: int, dtype: torch.dtype
) -> torch.Tensor:
    """Rows of a weight: [T, in_features]."""
    panels, columns = token_ids // PANEL_WIDTH, token_ids % PANEL_WIDTH
    found = codes[panels, :, columns]  # [T, in_features], of int4 [T, in_features / 8]
    if codes.dtype == torch.int8:
        return (found.float() * scales[panels, columns, None]).to(dtype)
    of_groups = scales[panels, :, columns].float().repeat_interleave(GROUP, dim=1)
    return (_levels_of(found).flatten(1)[:, :in_features] * of_groups[:, :in_features]).to(dtype)


def _levels_of(words: torch.Tensor) -> torch.Tensor:
    """words: [...] int32 of int4. Returns the levels of their codes in the order of k, [..., 8] float32."""
    shifts = torch.tensor(_SHIFTS, dtype=torch.int32)
    return torch.tensor(LEVELS, dtype=torch.float32)[(words[..., None] >> shifts & 15).long()]


def _slices(shape: torch.Size | tuple[int, ...], elements: int = _SLICE_ELEMENTS) -> Iterator[range]:
    """Rows that are processed at once: whole panels, except for the last slice."""
    step = max(1, elements // max(1, shape[1]) // PANEL_WIDTH) * PANEL_WIDTH
    for start in range(0, shape[0], step):
        yield range(start, min(start + step, shape[0]))


def _int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weight = _whole_panels(weight)
    largest = weight.abs().amax(-1, keepdim=True)
    codes = (weight * torch.where(largest > _SMALLEST, 127 / largest, 0.0)).round().to(torch.int8)
    panels = codes.view(-1, PANEL_WIDTH, weight.shape[1]).transpose(1, 2)
    return panels.contiguous(), (largest / 127).view(-1, PANEL_WIDTH)


def _int4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each group gets the scale with the smallest squared error, which may clip the element of largest magnitude."""
    weight = _whole_panels(weight)
    rows, depth = weight.shape
    groups = torch.nn.functional.pad(weight, (0, -depth % GROUP)).view(rows, -1, GROUP)
    counts = torch.ones(depth).view(1, -1)
    is_element = torch.nn.functional.pad(counts, (0, -depth % GROUP)).view(1, -1, GROUP)
    levels = torch.tensor(LEVELS, dtype=torch.float32)
    between = (levels[1:] + levels[:-1]) / 2
    largest = groups.abs().amax(-1, keepdim=True)
    base = torch.where((groups == largest).any(-1, keepdim=True), largest, -largest) / LEVELS[0]

    def codes_of(scale: torch.Tensor) -> torch.Tensor:
        return torch.bucketize(groups * torch.where(scale != 0, 1 / scale, 0.0), between)

    best = least_error = None
    for stretch in STRETCHES:
        scale = (base * stretch).bfloat16().float()
        error = ((groups - levels[codes_of(scale)] * scale).square() * is_element).sum(-1, keepdim=True)
        is_better = torch.ones_like(error, dtype=torch.bool) if least_error is None else error < least_error
        best = scale if best is None else torch.where(is_better, scale, best)
        least_error = error if least_error is None else torch.where(is_better, error, least_error)
    assert best is not None
    codes = codes_of(best).view(rows, -1)[:, : -(-depth // CODES_DEEP) * CODES_DEEP].to(torch.int32)
    words = torch.zeros(rows, codes.shape[1] // CODES_DEEP, dtype=torch.int32)
    for k, shift in enumerate(_SHIFTS):
        words |= codes[:, k::CODES_DEEP] << shift
    panels = words.view(-1, PANEL_WIDTH, words.shape[1]).transpose(1, 2).contiguous()
    return panels, best.view(rows // PANEL_WIDTH, PANEL_WIDTH, -1).transpose(1, 2).contiguous().bfloat16()


def _whole_panels(weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(weight, (0, 0, 0, -weight.shape[0] % PANEL_WIDTH))
