"""Matrices of several tensors as grouped weights (kernels/grouped.py): their own codes and scales.

What comes in is the tensors of a matrix as a checkpoint's method stores them; what goes out is codes [out, in], the
levels of codes, scales and zeros [out, groups]. For GPTQ:

    qweight, scales, qzeros, g_idx  ->  Grouped(codes, levels, scales, zeros, order)

What has no such form is None: its numbers are computed instead (kernels/dequantise_packed.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...config.checkpoint.stored import Packed
from ..kernels import Grouped, GroupScales
from ..kernels.dequantise_packed import AWQ_ORDER, exponents, unpack_bits
from ..kernels.stored_codes import CodeKind, StoredCodes
from .grouped_codes import FP4_LEVELS, UP_TO_15, signed_int8, split, unsigned


def of_packed(packed: Packed, parts: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Grouped | None:
    """All outputs of the matrix. parts: as they are in the files. dtype: the model's."""
    inputs = packed.shape[1]
    if packed.block[1] == 0 or inputs % packed.block[1]:
        return None
    match packed.method.kind:
        case "gptq":
            return _gptq(packed, parts)
        case "awq":
            return _awq(parts)
        case "packed":
            return _packed(packed, parts)
        case "integers":
            points = None if packed.method.is_symmetric else parts["weight_zero_point"].float()
            zeros = None if points is None else _rows_on_grid(packed, points)
            made = signed_int8(parts["weight"], _on_grid(packed, parts["weight_scale"]), zeros)
            return _ordered(made, packed, parts.get("weight_g_idx"))
        case "fp8":
            return _fp8(packed, parts)
        case "mxfp4":
            codes = _low_first(parts[packed.method.codes])
            return Grouped(codes, FP4_LEVELS, GroupScales(exponents(parts["weight_scale"]).bfloat16()))
        case "nvfp4":
            whole = parts[packed.method.whole_scale].float().reshape(1, 1)
            outer = (1 / whole if packed.method.divides_scale else whole).expand(packed.shape[0], 1)
            return Grouped(
                _low_first(parts[packed.method.codes]),
                FP4_LEVELS,
                GroupScales(parts["weight_scale"].half(), outer.contiguous()),
            )
        case "bnb_int8":
            return signed_int8(parts["weight"], GroupScales((parts["SCB"] / 127)[:, None]))
        case "bnb_4bit":
            return _bnb_4bit(packed, parts) if dtype == torch.bfloat16 else None


def _low_first(pairs: torch.Tensor) -> torch.Tensor:
    """pairs: [rows, n] uint8 of two codes each, the first in the lower half. Returns [rows, 2 * n]."""
    wide = pairs.to(
        torch.int16
    )  # both codes in two bytes, little-endian: a third of the time of two interleaved copies
    return wide.bitwise_or_(wide << 4).bitwise_and_(0x0F0F).view(torch.uint8)


def _pairs_of(words: torch.Tensor, count: int) -> torch.Tensor | StoredCodes:
    """words: [rows, W] int32 of codes of 4 bits, the first in the lowest. `count` of each row."""
    if not words.is_contiguous():
        return _codes_of_words(words, 4, count)
    return StoredCodes(words, CodeKind.NIBBLE_PAIRS, (len(words), count), lambda: _codes_of_words(words, 4, count))


def _codes_of_words(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """words: [rows, W] int32. Returns the first `count` codes of each row, uint8."""
    content = words.contiguous().view(torch.uint8)
    if bits == 8:
        return content[:, :count]
    if bits == 4:
        return _low_first(content)[:, :count]
    if bits == 2:
        shifts = torch.arange(0, 8, 2, dtype=torch.uint8)
        return (content[..., None] >> shifts & 3).flatten(1)[:, :count]
    return unpack_bits(words, bits, count).to(torch.uint8)


def _gptq(packed: Packed, parts: Mapping[str, torch.Tensor]) -> Grouped | None:
    bits, (outputs, inputs) = packed.method.bits, packed.shape
    words = parts["qweight"]

    def unpack() -> torch.Tensor:
        return _codes_of_words(words.T, bits, inputs)

    is_stored = bits == 4 and words.is_contiguous() and inputs % 8 == 0
    codes = StoredCodes(words, CodeKind.DEEP_WORDS, (outputs, inputs), unpack) if is_stored else unpack()
    zeros = unpack_bits(parts["qzeros"].contiguous(), bits, outputs)
    if packed.method.adds_one:
        zeros = (zeros + 1) & ((1 << bits) - 1)
    made = unsigned(codes, bits, GroupScales(parts["scales"].T.contiguous()), zeros.T.contiguous())
    return _ordered(made, packed, parts.get("g_idx"))


def _awq(parts: Mapping[str, torch.Tensor]) -> Grouped:
    def in_order(name: str) -> torch.Tensor:
        words = parts[name].T.contiguous()
        of_words = split(_low_first(words.view(torch.uint8)), (-1, 8))
        codes = of_words.new_empty(len(words), 8, words.shape[1])
        for output, place in enumerate(AWQ_ORDER):
            codes[:, output] = of_words[..., place]
        return codes.flatten(0, 1)

    return unsigned(in_order("qweight"), 4, GroupScales(parts["scales"].T.contiguous()), in_order("qzeros"))


def _packed(packed: Packed, parts: Mapping[str, torch.Tensor]) -> Grouped | None:
    bits, (outputs, inputs) = packed.method.bits, packed.shape
    words = parts["weight_packed"]
    codes = _pairs_of(words, inputs) if bits == 4 else _codes_of_words(words, bits, inputs)
    scales = _on_grid(packed, parts["weight_scale"])
    middle = 1 << (bits - 1)
    zeros = torch.full_like(scales.values, middle, dtype=torch.float32)
    if not packed.method.is_symmetric:
        count = -(-outputs // packed.block[0])
        own = unpack_bits(parts["weight_zero_point"].T.contiguous(), bits, count).T.float()
        zeros = _rows_on_grid(packed, own)
    elif bits < 8:
        return _ordered(Grouped(codes, UP_TO_15 - middle, scales), packed, parts.get("weight_g_idx"))
    return _ordered(unsigned(codes, bits, scales, zeros), packed, parts.get("weight_g_idx"))


def _fp8(packed: Packed, parts: Mapping[str, torch.Tensor]) -> Grouped | None:
    codes = parts["weight"].view(torch.uint8)
    if bool(((codes & 127) == 127).any()):
        return None  # NaN: refused where the numbers are computed
    levels = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0.0)
    scales = next(each for name, each in parts.items() if name != "weight")
    if scales.dtype in (torch.uint8, torch.float8_e8m0fnu):
        scales = exponents(scales)
    return Grouped(codes, levels, _on_grid(packed, scales))


def _bnb_4bit(packed: Packed, parts: Mapping[str, torch.Tensor]) -> Grouped:
    """The levels are rounded to bfloat16, as numbers in the model's dtype would be."""
    pairs = parts["weight"].view(packed.shape[0], -1)
    scales = parts["weight.absmax"]
    if packed.outer is not None:
        size, offset = packed.outer
        outer = parts["weight.nested_absmax"][torch.arange(len(scales)) // size]
        scales = parts["weight.nested_quant_map"][scales.int()] * outer + offset
    codes = torch.stack((pairs >> 4, pairs & 15), -1).flatten(1)
    return Grouped(
        codes, parts["weight.quant_map"].bfloat16().float(), GroupScales(scales.float().view(packed.shape[0], -1))
    )


def _on_grid(packed: Packed, scales: torch.Tensor) -> GroupScales:
    """Scales with a row for each output."""
    return GroupScales(_rows_on_grid(packed, scales))


def _rows_on_grid(packed: Packed, numbers: torch.Tensor) -> torch.Tensor:
    (outputs, inputs), block = packed.shape, packed.block
    grid = numbers.reshape(-(-outputs // block[0]), inputs // block[1])
    return grid if block[0] == 1 else grid.repeat_interleave(block[0], dim=0)[:outputs].contiguous()


def _ordered(made: Grouped, packed: Packed, of_inputs: torch.Tensor | None) -> Grouped | None:
    """of_inputs: the group of each input; None: in order."""
    if of_inputs is None or torch.equal(of_inputs, torch.arange(packed.shape[1], dtype=of_inputs.dtype) // made.group):
        return made
    order = torch.argsort(of_inputs, stable=True)
    groups = torch.arange(packed.shape[1], dtype=of_inputs.dtype) // made.group
    if not torch.equal(of_inputs[order], groups):
        return None  # groups of different sizes, or that do not exist
    return Grouped(made.unpacked[:, order], made.levels, made.scales, made.zeros, made.minima, order)
