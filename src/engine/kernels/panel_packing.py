"""Packs weights of linear layers into panels, the order that the C++ kernels read (panel_linear.py).

What comes in is a weight in the order of the checkpoint, [outputs, inputs]. What goes out is a PackedLinear in which
the elements of PANEL_WIDTH outputs are stored together:

    weight [100, 4096]  ->  7 panels of 16 outputs, the last one padded: [112, 4096]

A layer that the kernels do not support stays in its order: torch computes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ...model.quantised import CODES_DEEP, GROUP, MAX_EXCEPTIONS, PANEL_WIDTH, twelve_bit_bytes
from .cpu.library import INT64, POINTER, CpuLibrary, pointer
from .grouped import Grouped, kernels_take, stacked
from .grouped_panels import GroupedPacker, set_stride
from .linear import (
    PackedLinear,
    PackGrouped,
    PackLinear,
    QuantiseLinear,
    RepackLinear,
    join_linear_reference,
    pack_linear_reference,
    quantise_linear_reference,
)
from .quantised import Integers

logger = logging.getLogger(__name__)

CODES = {"int8": torch.int8, "int4": torch.int32}  # type of the tensor of codes
DEPTH_STEPS = {torch.float32: 1, torch.bfloat16: 32}  # in_features must be a multiple; 32 is the depth of a tile
QUANTISED_STEP, ROUNDED_STEP = 32, 64  # in_features of quantised layers, and of those that round rows of x


def pack_linear_cpu(library: CpuLibrary) -> PackLinear:
    """Packs weights into panels, except for types that the level does not multiply and depths that it does not support,
    which torch computes.

    On levels that support it, bfloat16 is compressed to 12 bits per element without loss.
    """
    packs = {
        dtype: library.op("pack", dtype, [POINTER, POINTER, INT64, INT64])
        for dtype in DEPTH_STEPS
        if library.level.multiplies(str(dtype).removeprefix("torch."))
    }
    advise_huge_pages = library.function("advise_huge_pages", [POINTER, INT64])
    pack_twelve_bits = _pack_twelve_bits(library) if library.level.has_twelve_bits else None

    def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
        out_features, in_features = weight.shape
        dtype = weight.dtype
        if dtype not in packs or in_features % DEPTH_STEPS[dtype]:
            return pack_linear_reference(weight, bias)
        weight = weight.contiguous()
        panels = pack_twelve_bits(weight) if pack_twelve_bits is not None and dtype == torch.bfloat16 else None
        if panels is None:
            panels = weight.new_empty(-(-out_features // PANEL_WIDTH) * PANEL_WIDTH, in_features)
            advise_huge_pages(panels.data_ptr(), panels.nbytes)  # before the first write, which allocates the pages
            packs[dtype](pointer(weight, dtype), panels.data_ptr(), out_features, in_features)
        if bias is not None:
            bias = bias.to(dtype).contiguous()
        return PackedLinear(panels, bias, out_features, in_features, is_packed=True, dtype=dtype)

    return pack_linear


def _pack_twelve_bits(library: CpuLibrary) -> Callable[[torch.Tensor], torch.Tensor | None]:
    survey = library.function("survey_twelve_bits", [POINTER] * 3 + [INT64] * 2)
    pack = library.function("pack_twelve_bits", [POINTER] * 4 + [INT64] * 2)
    advise_huge_pages = library.function("advise_huge_pages", [POINTER, INT64])

    def pack_twelve_bits(weight: torch.Tensor) -> torch.Tensor | None:
        """Pack a weight; None if too many elements would be exceptions."""
        out_features, in_features = weight.shape
        first = torch.empty(-(-out_features // PANEL_WIDTH), dtype=torch.uint8)  # of each panel's 15 exponents
        outside = torch.empty(first.shape, dtype=torch.int64)
        source = pointer(weight, torch.bfloat16)
        survey(source, first.data_ptr(), outside.data_ptr(), out_features, in_features)
        num_exceptions = int(outside.sum())
        if num_exceptions > MAX_EXCEPTIONS * weight.numel():
            return None
        starts = (outside + 1).cumsum(0) - (outside + 1)
        panels = torch.empty(twelve_bit_bytes(out_features, in_features, num_exceptions), dtype=torch.uint8)
        advise_huge_pages(panels.data_ptr(), panels.nbytes)
        pack(source, first.data_ptr(), starts.data_ptr(), panels.data_ptr(), out_features, in_features)
        return panels

    return pack_twelve_bits


def repack_linear_cpu(library: CpuLibrary) -> RepackLinear:
    """Return the op for weights that torch has multiplied until now. Quantised ones stay: their order differs."""
    pack_linear = pack_linear_cpu(library)

    def repack_linear(packed: PackedLinear) -> PackedLinear:
        if packed.is_packed or packed.scales is not None or packed.grouped is not None or packed.pieces:
            return packed
        try:
            return pack_linear(packed.weight, packed.bias)
        except (MemoryError, RuntimeError) as error:  # torch's allocator raises RuntimeError
            logger.warning("a weight stays in the order of torch, which is slower: %s", error)
            return packed

    return repack_linear


def quantise_linear_cpu(library: CpuLibrary, *, rounds_rows: bool = False) -> QuantiseLinear:
    """Quantises into panels. torch computes layers whose in_features the kernels do not support.

    rounds_rows: for layers that round rows of x too, whose int8 codes are in another order.
    """
    arguments = [POINTER] * 3 + [INT64] * 2
    calls = {
        (scheme, dtype): library.op(f"quantise_{layout_name(scheme, rounds_rows)}", dtype, arguments)
        for scheme in CODES
        for dtype in (torch.float32, torch.bfloat16)
    }
    advise_huge_pages = library.function("advise_huge_pages", [POINTER, INT64])
    step = ROUNDED_STEP if rounds_rows else QUANTISED_STEP

    def quantise_linear(weight: torch.Tensor, bias: torch.Tensor | None, scheme: str) -> PackedLinear:
        out_features, in_features = weight.shape
        if in_features % step or (scheme, weight.dtype) not in calls:
            return replace(quantise_linear_reference(weight, bias, scheme), rounds_rows=rounds_rows)
        weight = weight.contiguous()
        panels = -(-out_features // PANEL_WIDTH)
        if scheme == "int8":
            codes = torch.empty(panels, in_features, PANEL_WIDTH, dtype=torch.int8)
            scales = torch.empty(panels, PANEL_WIDTH)
        else:
            codes = torch.empty(panels, in_features // CODES_DEEP, PANEL_WIDTH, dtype=torch.int32)
            scales = torch.empty(panels, -(-in_features // GROUP), PANEL_WIDTH, dtype=torch.bfloat16)
        advise_huge_pages(codes.data_ptr(), codes.nbytes)
        source = pointer(weight, weight.dtype)
        calls[scheme, weight.dtype](source, codes.data_ptr(), scales.data_ptr(), out_features, in_features)
        if bias is not None:
            bias = bias.contiguous()
        shape = out_features, in_features
        return PackedLinear(
            codes, bias, *shape, is_packed=True, dtype=weight.dtype, scales=scales, rounds_rows=rounds_rows
        )

    return quantise_linear


def pack_grouped_cpu(library: CpuLibrary) -> PackGrouped:
    """Packs codes and scales into panels."""
    packer = GroupedPacker(library)

    def pack_grouped(parts: Sequence[Grouped], bias: torch.Tensor | None, dtype: torch.dtype) -> PackedLinear | None:
        if dtype not in DEPTH_STEPS or not kernels_take(parts[0]):
            return None
        if any(part.shape[0] % PANEL_WIDTH for part in parts[:-1]):
            parts = [stacked(parts)]
        packed = packer.pack(parts)
        bias = None if bias is None else bias.to(dtype).contiguous()
        shape = sum(part.shape[0] for part in parts), parts[0].shape[1]
        return PackedLinear(
            packed.panels, bias, *shape, is_packed=True, dtype=dtype, scales=packed.format, order=packed.order
        )

    return pack_grouped


def pack_integers_cpu(weight: Integers, bias: torch.Tensor | None, dtype: torch.dtype) -> PackedLinear | None:
    """Codes in the order of cpu/integer_products.h: unsigned, four inputs of an output together."""
    out_features, in_features = weight.codes.shape
    if dtype not in DEPTH_STEPS or in_features % ROUNDED_STEP:
        return None
    panels = -(-out_features // PANEL_WIDTH)
    words = torch.full((panels * PANEL_WIDTH, in_features), 128, dtype=torch.uint8)
    torch.bitwise_xor(weight.codes.view(torch.uint8), 128, out=words[:out_features])
    fours = words.view(torch.int32).view(panels, PANEL_WIDTH, in_features // 4).transpose(1, 2).contiguous()
    scales = torch.zeros(panels * PANEL_WIDTH)
    scales[:out_features] = weight.scales
    return PackedLinear(
        fours.view(torch.int8).view(panels, in_features, PANEL_WIDTH),
        None if bias is None else bias.to(dtype).contiguous(),
        out_features,
        in_features,
        is_packed=True,
        dtype=dtype,
        scales=scales.view(panels, PANEL_WIDTH),
        rounds_rows=True,
    )


def join_linear_cpu(pieces: Sequence[PackedLinear]) -> PackedLinear:
    """Computes join_linear_reference; panels write their outputs between the outputs of the others."""
    joined = join_linear_reference(pieces)
    is_packed = all(piece.is_packed for piece in pieces)
    if is_packed:
        for piece in pieces:
            assert piece.scales is not None, "only grouped layers are joined"
            set_stride(piece.scales, joined.out_features)
    return replace(joined, is_packed=is_packed)


def layout_name(scheme: str, rounds_rows: bool) -> str:
    """The name of the layout of codes in the library (integer_products.h): only int8's differs."""
    return "bytes" if rounds_rows and scheme == "int8" else scheme
