"""Grouped weights (grouped.py) in the panels of the C++ kernels (cpu/grouped.h)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ...model.quantised import GROUP_STEPS, GroupLayout
from .cpu.library import INT64, POINTER, CpuLibrary
from .grouped import Grouped, layout_of
from .stored_codes import StoredCodes, form_of

_NUMBERS = {  # NumberType of cpu/grouped.h, 0 for none
    torch.float32: 1,
    torch.float16: 2,
    torch.bfloat16: 3,
    torch.uint8: 4,
    torch.int8: 5,
}
_OFFSETS: dict[Literal["", "zeros", "minima"], int] = {"": 0, "zeros": 1, "minima": 2}
_ITEM_BYTES = {_NUMBERS[dtype]: dtype.itemsize for dtype in _NUMBERS} | {0: 0}
_ORDER_AT, _STRIDE_AT = 6 * 8, 7 * 8  # bytes before GroupedFormat.order and .stride
FORMAT_BYTES = 8 * 8 + 128 * 4 + 64 * 2 + 2 * 128  # of a GroupedFormat
PANELS_DTYPE = torch.int16  # of the tensor of panels, which no other layout has


@dataclass(frozen=True, slots=True)
class GroupedPanels:
    panels: torch.Tensor  # [bytes / 2] int16
    format: torch.Tensor  # [bytes] uint8, a GroupedFormat
    order: torch.Tensor | None  # [in] int32, to which the format points


class GroupedPacker:
    def __init__(self, library: CpuLibrary) -> None:
        self._pack = library.function("pack_grouped", [POINTER] * 8 + [INT64] * 2)
        self._advise_huge_pages = library.function("advise_huge_pages", [POINTER, INT64])

    def pack(self, parts: Sequence[Grouped]) -> GroupedPanels:
        """The outputs of all parts, which are alike. Each part but the last is whole panels."""
        first = parts[0]
        layout, in_features = layout_of(first), first.shape[1]
        order = None if first.order is None else first.order.to(torch.int32).contiguous()
        out_features = sum(part.shape[0] for part in parts)
        form = _format(first, layout, order)
        set_stride(form, out_features)
        panels = torch.empty(layout.num_bytes(out_features, in_features) // 2, dtype=PANELS_DTYPE)
        self._advise_huge_pages(panels.data_ptr(), panels.nbytes)  # before the first write, which allocates the pages
        at = panels.data_ptr()
        for part in parts:
            self._pack_part(part, form, at)
            at += layout.num_bytes(*part.shape)
        return GroupedPanels(panels, form, order)

    def _pack_part(self, weight: Grouped, form: torch.Tensor, at: int) -> None:
        """at: address of its first panel."""
        codes = weight.codes if isinstance(weight.codes, StoredCodes) else weight.codes.contiguous()
        content = codes.content if isinstance(codes, StoredCodes) else codes
        assert content.is_contiguous(), "the rows of a file follow one another"
        code_form = torch.frombuffer(bytearray(form_of(codes)), dtype=torch.uint8)
        scales = weight.scales.values.contiguous()
        zeros = None if weight.zeros is None else weight.zeros.bfloat16()
        minima = None if weight.minima is None else weight.minima.values
        kept = [
            _contiguous(each) for each in (zeros if minima is None else minima, weight.scales.outer, _outer(weight))
        ]
        self._pack(
            form.data_ptr(),
            code_form.data_ptr(),
            content.data_ptr(),
            scales.data_ptr(),
            *(None if each is None else each.data_ptr() for each in kept),
            at,
            *weight.shape,
        )


def set_stride(form: torch.Tensor, stride: int) -> None:
    """stride: elements from a row of outputs to the next, in a format that is not yet used."""
    _set_word(form, _STRIDE_AT, stride)


def set_order(form: torch.Tensor, order: torch.Tensor | None) -> None:
    """order: [in] int32, which must live as long as the format."""
    _set_word(form, _ORDER_AT, 0 if order is None else order.data_ptr())


def _set_word(form: torch.Tensor, at: int, value: int) -> None:
    form[at : at + 8] = torch.frombuffer(bytearray(struct.pack("=q", value)), dtype=torch.uint8)


def layout_in(form: torch.Tensor, in_features: int) -> GroupLayout | None:
    """What a format from a file says of its panels; None if no weight has such a format."""
    bits, group, block, scale, outer, offset = form[:_ORDER_AT].view(torch.int64).tolist()
    offsets = {number: name for name, number in _OFFSETS.items()}
    is_known = bits in GROUP_STEPS and scale in _ITEM_BYTES and outer in _ITEM_BYTES and offset in offsets
    if not is_known or not scale or not 0 < group <= block or block % group:
        return None
    scale_bytes, outer_bytes = _ITEM_BYTES[scale], _ITEM_BYTES[outer]
    layout = GroupLayout(bits, group, scale_bytes, outer_bytes, block if outer else 0, offsets[offset])
    return layout if layout.block(in_features) == block else None


def _format(weight: Grouped, layout: GroupLayout, order: torch.Tensor | None) -> torch.Tensor:
    outer = weight.scales.outer
    numbers = (
        layout.bits,
        layout.group,
        layout.block(weight.shape[1]),
        _NUMBERS[weight.scales.values.dtype],
        0 if outer is None else _NUMBERS[outer.dtype],
        _OFFSETS[layout.offset],
        0 if order is None else order.data_ptr(),
        0,  # of the stride, which is set later
    )
    levels = weight.levels[:128]
    halves = levels.bfloat16().view(torch.int16)
    parts = (
        torch.tensor(numbers, dtype=torch.int64),
        torch.nn.functional.pad(levels, (0, 128 - len(levels))),
        halves[:64].repeat(64 // min(64, len(levels))),
        (halves & 0xFF).to(torch.uint8).repeat(128 // len(halves)),
        (halves >> 8 & 0xFF).to(torch.uint8).repeat(128 // len(halves)),
    )
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts])


def _outer(weight: Grouped) -> torch.Tensor | None:
    return None if weight.minima is None else weight.minima.outer


def _contiguous(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.contiguous()
