"""Linear layers and embeddings over panels (panel_packing.py), by functions of the C++ library.

The library has one function for each type of packed elements, each type of x, and each way to multiply:

    linear_bfloat16               elements and x in bfloat16
    linear_int8_float32           int8 codes, x in float32
    integer_linear_int8_float32   int8 codes, rows of x rounded to int8

A table of them is made once. A call takes its function from the table by the format of the layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cpu.library import INT, INT64, POINTER, CpuLibrary, pointer, suffix
from .grouped_panels import PANELS_DTYPE
from .linear import Embed, Linear, PackedLinear, embed_reference, linear_reference
from .panel_packing import CODES, DEPTH_STEPS, layout_name

Format = tuple[torch.dtype, torch.dtype, bool]  # of the packed elements, of x, and whether rows of x are rounded


def _format_of(packed: PackedLinear) -> Format:
    return packed.weight.dtype, packed.dtype, packed.rounds_rows


def _functions(library: CpuLibrary, stem: str) -> dict[Format, str]:
    """The name of the library's function for each format: `stem` is linear or panels."""
    names: dict[Format, str] = {}
    for dtype in DEPTH_STEPS:
        of_x = suffix(dtype)
        names[dtype, dtype, False] = f"{stem}_{of_x}"
        if library.spec.has_quantised:
            names[PANELS_DTYPE, dtype, False] = f"{stem}_grouped_{of_x}"
            for scheme, codes in CODES.items():
                names[codes, dtype, False] = f"{stem}_{scheme}_{of_x}"
                names[codes, dtype, True] = f"integer_{stem}_{scheme}_{of_x}"
    if library.level.has_twelve_bits:
        names[torch.uint8, torch.bfloat16, False] = f"{stem}_twelve_bits"
    return names


def panel_products(library: CpuLibrary) -> Callable[[PackedLinear], int]:
    """The address of the function that multiplies by some panels of a layer, for cpu/experts.cpp."""
    addresses = {form: library.address(name) for form, name in _functions(library, "panels").items()}
    return lambda packed: addresses[_format_of(packed)]


def linear_cpu(library: CpuLibrary, unpacked: Linear = linear_reference) -> Linear:
    """unpacked: computes layers that are not packed."""
    empty = library.memory.empty
    has_scales = {*CODES.values(), PANELS_DTYPE}
    calls = {}
    for form, name in _functions(library, "linear").items():
        num_pointers = 5 if form[0] in has_scales else 4
        calls[form] = library.function(name, [POINTER] * num_pointers + [INT64] * 3)

    def linear(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        if not packed.is_packed:
            return unpacked(x, packed)
        rows, depth = x.shape
        if depth != packed.in_features:
            raise ValueError(f"x is {tuple(x.shape)}, the layer takes rows of {packed.in_features} elements")
        dtype = packed.dtype
        out = empty(rows, packed.out_features, dtype=dtype)
        at = out.data_ptr()
        for piece in packed.pieces or (packed,):
            arguments = [
                pointer(x, dtype),
                piece.weight.data_ptr(),
                *(() if piece.scales is None else (piece.scales.data_ptr(),)),
                None if piece.bias is None else pointer(piece.bias, dtype),
                at,
                rows,
                piece.out_features,
                depth,
            ]
            calls[_format_of(piece)](*arguments)
            at += piece.out_features * dtype.itemsize
        return out

    return linear


def embed_cpu(library: CpuLibrary) -> Embed:
    """Takes rows out of panels."""
    empty = library.memory.empty
    without_scales = [POINTER] * 3 + [INT64] * 3
    with_scales = [POINTER] * 4 + [INT64] * 3
    calls: dict[Format, Callable[..., int]] = {}
    for dtype in DEPTH_STEPS:
        calls[dtype, dtype, False] = library.op("unpack_rows", dtype, without_scales, INT)
        if library.spec.has_quantised:
            calls[PANELS_DTYPE, dtype, False] = library.op("unpack_rows_grouped", dtype, with_scales, INT)
            for scheme, codes in CODES.items():
                for rounds_rows in (False, True):
                    name = f"unpack_rows_{layout_name(scheme, rounds_rows)}"
                    calls[codes, dtype, rounds_rows] = library.op(name, dtype, with_scales, INT)
    if library.level.has_twelve_bits:
        twelve_bits = library.function("unpack_rows_twelve_bits", without_scales, INT)
        calls[torch.uint8, torch.bfloat16, False] = twelve_bits

    def embed(token_ids: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        if not packed.is_packed:
            return embed_reference(token_ids, packed)
        sizes = (token_ids.shape[0], packed.out_features, packed.in_features)
        ids = pointer(token_ids, torch.int64)
        out = empty(token_ids.shape[0], packed.in_features, dtype=packed.dtype)
        scales = () if packed.scales is None else (packed.scales.data_ptr(),)
        call = calls[_format_of(packed)]
        if call(packed.weight.data_ptr(), *scales, ids, out.data_ptr(), *sizes):
            raise IndexError(f"a token id is not in [0, {packed.out_features})")
        return out

    return embed
