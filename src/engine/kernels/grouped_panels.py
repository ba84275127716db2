"""Grouped weights (grouped.py) in the panels of the C++ kernels (cpu/grouped.h).

What comes in is codes, scales and offsets of a checkpoint. What goes out is two tensors: the panels, in which all data
of 16 outputs and a block of inputs are together, and a GroupedFormat, the C++ struct that says how to read them:

    8 words: bits, group, block, scale, outer, offset, order, stride
    the levels of the codes, in float32 and in bfloat16, as the kernels look them up
"""

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

_NO_NUMBER = 0  # a NumberType of cpu/grouped.h, as the following
_NUMBER_TYPES = {
    torch.float32: 1,
    torch.float16: 2,
    torch.bfloat16: 3,
    torch.uint8: 4,
    torch.int8: 5,
}
_NUMBER_BYTES = {_NO_NUMBER: 0} | {number_type: dtype.itemsize for dtype, number_type in _NUMBER_TYPES.items()}
_OFFSET_TYPES: dict[Literal["", "zeros", "minima"], int] = {"": 0, "zeros": 1, "minima": 2}
_WORDS = ("bits", "group", "block", "scale", "outer", "offset", "order", "stride")  # at the start of a GroupedFormat
_WORD_BYTES = 8
_NUM_LEVELS, _NUM_HALVES = 128, 64
FORMAT_BYTES = len(_WORDS) * _WORD_BYTES + _NUM_LEVELS * 4 + _NUM_HALVES * 2 + 2 * _NUM_LEVELS
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
        address = panels.data_ptr()
        for part in parts:
            self._pack_part(part, form, address)
            address += layout.num_bytes(*part.shape)
        return GroupedPanels(panels, form, order)

    def _pack_part(self, weight: Grouped, form: torch.Tensor, address: int) -> None:
        """address: of the first panel of the part."""
        codes = weight.codes if isinstance(weight.codes, StoredCodes) else weight.codes.contiguous()
        content = codes.content if isinstance(codes, StoredCodes) else codes
        assert content.is_contiguous(), "the rows of a file follow one another"
        code_form = torch.frombuffer(bytearray(form_of(codes)), dtype=torch.uint8)
        scales, minima = weight.scales, weight.minima
        offsets, outer_minima = None, None
        if minima is not None:
            offsets, outer_minima = minima.values, minima.outer
        elif weight.zeros is not None:
            offsets = weight.zeros.bfloat16()
        # C++ reads these while it packs: they must live until it has returned.
        tensors = [_contiguous(tensor) for tensor in (scales.values, offsets, scales.outer, outer_minima)]
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        self._pack(form.data_ptr(), code_form.data_ptr(), content.data_ptr(), *pointers, address, *weight.shape)


def set_stride(form: torch.Tensor, stride: int) -> None:
    """stride: elements from a row of outputs to the next, in a format that is not yet used."""
    _set_word(form, "stride", stride)


def set_order(form: torch.Tensor, order: torch.Tensor | None) -> None:
    """order: [in] int32, which must live as long as the format."""
    _set_word(form, "order", 0 if order is None else order.data_ptr())


def _set_word(form: torch.Tensor, word: str, value: int) -> None:
    start = _WORDS.index(word) * _WORD_BYTES
    form[start : start + _WORD_BYTES] = torch.frombuffer(bytearray(struct.pack("=q", value)), dtype=torch.uint8)


def layout_in(form: torch.Tensor, in_features: int) -> GroupLayout | None:
    """What a format from a file says of its panels; None if no weight has such a format."""
    words = form[: len(_WORDS) * _WORD_BYTES].view(torch.int64).tolist()
    bits, group, block, scale, outer, offset_type, _, _ = words
    offset = next((name for name, number in _OFFSET_TYPES.items() if number == offset_type), None)
    if bits not in GROUP_STEPS or offset is None:
        return None
    if scale not in _NUMBER_BYTES or scale == _NO_NUMBER or outer not in _NUMBER_BYTES:
        return None
    if not 0 < group <= block or block % group:
        return None
    outer_group = block if outer else 0
    layout = GroupLayout(bits, group, _NUMBER_BYTES[scale], _NUMBER_BYTES[outer], outer_group, offset)
    return layout if layout.block(in_features) == block else None


def _format(weight: Grouped, layout: GroupLayout, order: torch.Tensor | None) -> torch.Tensor:
    outer = weight.scales.outer
    words = {
        "bits": layout.bits,
        "group": layout.group,
        "block": layout.block(weight.shape[1]),
        "scale": _NUMBER_TYPES[weight.scales.values.dtype],
        "outer": _NO_NUMBER if outer is None else _NUMBER_TYPES[outer.dtype],
        "offset": _OFFSET_TYPES[layout.offset],
        "order": 0 if order is None else order.data_ptr(),
        "stride": 0,  # set later
    }
    levels = weight.levels[:_NUM_LEVELS]  # of 8 bits, the other half is the same with another sign
    halves = levels.bfloat16().view(torch.int16)
    low, high = (halves & 0xFF).to(torch.uint8), (halves >> 8 & 0xFF).to(torch.uint8)
    parts = (
        torch.tensor([words[word] for word in _WORDS], dtype=torch.int64),
        torch.nn.functional.pad(levels, (0, _NUM_LEVELS - len(levels))),
        _repeated(halves[:_NUM_HALVES], _NUM_HALVES),
        _repeated(low, _NUM_LEVELS),
        _repeated(high, _NUM_LEVELS),
    )
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts])


def _repeated(values: torch.Tensor, count: int) -> torch.Tensor:
    return values.repeat(count // len(values))


def _contiguous(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.contiguous()
