"""Quantised matrices of checkpoints as grouped weights (kernels/grouped.py): their own codes and scales.

Each function returns None for what has no such form, such as blocks of GGUF's types below 2 bits; the numbers of those
are computed instead (dequantise.py, kernels/dequantise_packed.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...config.checkpoint.stored import BLOCKS, Packed
from ..kernels import Grouped, GroupScales
from ..kernels.dequantise_packed import AWQ_ORDER, FP4, exponents, unpack_bits
from ..kernels.stored_codes import CodeKind, StoredCodes

_SIZES = torch.arange(128.0)
_INTEGERS = torch.cat((_SIZES, -_SIZES))  # of sign and magnitude
_HALVES = torch.cat((_SIZES + 0.5, -_SIZES - 0.5))  # of unsigned bytes c: c - 127.5
_MIDDLE = 127.5
_FP4 = torch.tensor((*FP4, *(-level for level in FP4)))
_IQ4 = torch.tensor((-127.0, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))
_UP_TO_15, _UP_TO_63 = torch.arange(16.0), torch.arange(64.0)


# ---- blocks of GGUF


def of_blocks(content: torch.Tensor, dtype: str, shape: tuple[int, int]) -> Grouped | None:
    """content: [bytes] uint8. dtype: one of BLOCKS. Layouts: github.com/ggml-org/ggml, src/ggml-common.h."""
    make = _OF_BLOCKS.get(dtype)
    elements, size = BLOCKS[dtype]
    return None if make is None else make(content.view(shape[0], shape[1] // elements, size))


def _halves(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """blocks: [out, blocks, even number of bytes]. at: of a number in each. Returns [out, blocks] float16."""
    return blocks.view(torch.float16)[..., at // 2].contiguous()


def _split(fields: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """The last dimension as several."""
    return fields.reshape(*fields.shape[:-1], *sizes)


def _nibbles(fields: torch.Tensor) -> torch.Tensor:
    """fields: [..., n]: the lower halves of n bytes, then the upper halves. Returns [..., 2 * n]."""
    return torch.cat((fields & 15, fields >> 4), -1)


def _bits(fields: torch.Tensor) -> torch.Tensor:
    """fields: [..., n]. Returns their bits as 0 and 1, the lowest first, [..., 8 * n]."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return (fields[..., None] >> shifts & 1).flatten(-2)


def _of_halves(blocks: torch.Tensor, head: int, run: int) -> StoredCodes:
    """Runs of codes in the lower, then the upper halves of `run` bytes, after `head` bytes of each block."""
    rows, count, size = blocks.shape
    elements = 2 * (size - head)
    return StoredCodes(
        blocks,
        CodeKind.NIBBLE_HALVES,
        (rows, count * elements),
        lambda: _nibbles(_split(blocks[..., head:], (-1, run))).flatten(1),
        (elements, size, head, run),
    )


def _runs_of_16(blocks: torch.Tensor, num_runs: int = 1) -> StoredCodes:
    return _of_halves(blocks, blocks.shape[-1] - 16 * num_runs, 16)


def _q4(blocks: torch.Tensor) -> Grouped:
    has_minima = blocks.shape[-1] == 20
    codes, scales = _runs_of_16(blocks), GroupScales(_halves(blocks, 0))
    if has_minima:
        return Grouped(codes, _UP_TO_15, scales, minima=GroupScales(-_halves(blocks, 2)))
    return Grouped(codes, _UP_TO_15 - 8, scales)


def _q5(blocks: torch.Tensor) -> Grouped:
    has_minima = blocks.shape[-1] == 24
    codes = (_nibbles(blocks[..., -16:]) | _bits(blocks[..., -20:-16]) << 4).flatten(1)
    scales = GroupScales(_halves(blocks, 0))
    if has_minima:
        return Grouped(codes, _UP_TO_63, scales, minima=GroupScales(-_halves(blocks, 2)))
    return Grouped(codes, _UP_TO_63 - 16, scales)


def _q8_0(blocks: torch.Tensor) -> Grouped:
    codes, scales = blocks[..., 2:].view(torch.int8), GroupScales(_halves(blocks, 0))
    if _has_least(codes):
        return _unsigned_int8(codes.flatten(1), scales)
    shape = blocks.shape[0], blocks.shape[1] * 32
    stored = StoredCodes(blocks, CodeKind.SIGNED_BYTES, shape, lambda: _sign_and_size(codes).flatten(1), (32, 34, 2, 0))
    return Grouped(stored, _INTEGERS, scales)


def _q2_k(blocks: torch.Tensor) -> Grouped:
    packed = blocks[..., :16].flatten(1)
    codes = _pairs(blocks[..., 16:80])
    scales = GroupScales(packed & 15, _halves(blocks, 80))
    return Grouped(codes.flatten(1), _UP_TO_15, scales, minima=GroupScales(packed >> 4, _halves(blocks, 82)))


def _pairs(fields: torch.Tensor) -> torch.Tensor:
    """fields: [..., 32 * n]: of every 32 bytes the lowest two bits, then the next two, and so on. [..., 128 * n]."""
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    return (_split(fields, (-1, 1, 32)) >> shifts & 3).flatten(-3)


def _q3_k(blocks: torch.Tensor) -> Grouped:
    shifts = torch.arange(8, dtype=torch.uint8)[:, None]
    high = (blocks[..., None, :32] >> shifts & 1).flatten(-2)
    codes = _pairs(blocks[..., 32:96]) | high << 2
    packed = blocks[..., 96:108]
    low = torch.cat((packed[..., :8] & 15, packed[..., :8] >> 4), -1)
    upper = (packed[..., None, 8:] >> torch.arange(0, 8, 2, dtype=torch.uint8)[:, None] & 3).flatten(-2)
    scales = (low | upper << 4).to(torch.int8) - 32
    levels = _UP_TO_15 - 4
    return Grouped(codes.flatten(1), levels, GroupScales(scales.flatten(1), _halves(blocks, 108)))


def _scales_and_minima(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The 12 bytes after the first 4 of each block have 16 numbers of 6 bits. Returns [out, 8 * blocks] twice."""
    first, second, third = blocks.view(torch.int32)[..., 1:4].contiguous().unbind(-1)  # four bytes at a time
    low, rest, highest = 0x3F3F3F3F, 0x0F0F0F0F, 0x30303030
    scales = torch.stack((first & low, third & rest | first >> 2 & highest), -1)
    minima = torch.stack((second & low, third >> 4 & rest | second >> 2 & highest), -1)
    return scales.view(torch.uint8).flatten(1), minima.view(torch.uint8).flatten(1)


def _q4_k(blocks: torch.Tensor) -> Grouped:
    scales, minima = _scales_and_minima(blocks)
    codes = _of_halves(blocks, 16, 32)
    outer, outer_minima = _halves(blocks, 0), _halves(blocks, 2)
    return Grouped(codes, _UP_TO_15, GroupScales(scales, outer), minima=GroupScales(minima, outer_minima))


def _q5_k(blocks: torch.Tensor) -> Grouped:
    scales, minima = _scales_and_minima(blocks)
    shifts = torch.arange(8, dtype=torch.uint8)[:, None]
    high = (blocks[..., None, 16:48] >> shifts & 1).flatten(-2)
    codes = _nibbles(_split(blocks[..., 48:], (4, 32))).flatten(-2) | high << 4
    outer, outer_minima = _halves(blocks, 0), _halves(blocks, 2)
    return Grouped(codes.flatten(1), _UP_TO_63, GroupScales(scales, outer), minima=GroupScales(minima, outer_minima))


def _q6_k(blocks: torch.Tensor) -> Grouped:
    def unpack() -> torch.Tensor:
        low = _nibbles(_split(blocks[..., :128], (2, 64))).flatten(-2)
        return (low | _pairs(blocks[..., 128:192]) << 4).flatten(1)

    codes = StoredCodes(blocks, CodeKind.Q6_K, (blocks.shape[0], blocks.shape[1] * 256), unpack, (256, 210, 0, 0))
    scales = blocks[..., 192:208].contiguous().view(torch.int8).flatten(1)
    return Grouped(codes, _UP_TO_63 - 32, GroupScales(scales, _halves(blocks, 208)))


def _iq4_nl(blocks: torch.Tensor) -> Grouped:
    return Grouped(_runs_of_16(blocks), _IQ4, GroupScales(_halves(blocks, 0)))


def _iq4_xs(blocks: torch.Tensor) -> Grouped:
    low = (blocks[..., 4:8, None] >> torch.tensor((0, 4), dtype=torch.uint8) & 15).flatten(-2)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)
    high = (blocks[..., 2:4, None] >> shifts & 3).flatten(-2)
    scales = (low | high << 4).to(torch.int8) - 32
    return Grouped(_runs_of_16(blocks, 8), _IQ4, GroupScales(scales.flatten(1), _halves(blocks, 0)))


def _mxfp4_blocks(blocks: torch.Tensor) -> Grouped:
    scales = exponents(blocks[..., 0].contiguous()).bfloat16()
    return Grouped(_runs_of_16(blocks), _FP4, GroupScales(scales))


_OF_BLOCKS = {
    "Q4_0": _q4,
    "Q4_1": _q4,
    "Q5_0": _q5,
    "Q5_1": _q5,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4_blocks,
}


# ---- matrices of several tensors


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
            made = _of_int8(parts["weight"], _on_grid(packed, parts["weight_scale"]), zeros)
            return _ordered(made, packed, parts.get("weight_g_idx"))
        case "fp8":
            return _fp8(packed, parts)
        case "mxfp4":
            codes = _low_first(parts[packed.method.codes])
            return Grouped(codes, _FP4, GroupScales(exponents(parts["weight_scale"]).bfloat16()))
        case "nvfp4":
            whole = parts[packed.method.whole_scale].float().reshape(1, 1)
            outer = (1 / whole if packed.method.divides_scale else whole).expand(packed.shape[0], 1)
            return Grouped(
                _low_first(parts[packed.method.codes]),
                _FP4,
                GroupScales(parts["weight_scale"].half(), outer.contiguous()),
            )
        case "bnb_int8":
            return _of_int8(parts["weight"], GroupScales((parts["SCB"] / 127)[:, None]))
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


def _unsigned(codes: torch.Tensor | StoredCodes, bits: int, scales: GroupScales, zeros: torch.Tensor) -> Grouped:
    """(codes - zeros) * scales. zeros: [out, groups]."""
    if bits < 8:
        return Grouped(codes, _UP_TO_15, scales, zeros.float())
    codes = codes if isinstance(codes, torch.Tensor) else codes.unpack()
    signed = torch.where(codes >= 128, codes - 128, 255 - codes)  # 127 - c with the bit of the sign
    return Grouped(signed, _HALVES, scales, zeros.float() - _MIDDLE)


def _of_int8(codes: torch.Tensor, scales: GroupScales, zeros: torch.Tensor | None = None) -> Grouped:
    """codes: [out, in] int8. zeros: [out, groups] or None."""
    if zeros is not None or _has_least(codes):
        return _unsigned_int8(codes, scales, zeros)
    codes = codes.contiguous()
    shape = codes.shape[0], codes.shape[1]
    return Grouped(StoredCodes(codes, CodeKind.SIGNED_BYTES, shape, lambda: _sign_and_size(codes)), _INTEGERS, scales)


def _has_least(codes: torch.Tensor) -> bool:
    """Whether a number is -128, which sign and size in 8 bits do not have."""
    return bool(codes.numel()) and int(codes.min()) == -128


def _sign_and_size(codes: torch.Tensor) -> torch.Tensor:
    return codes.abs().view(torch.uint8) | (codes.contiguous().view(torch.uint8) & 128)


def _unsigned_int8(codes: torch.Tensor, scales: GroupScales, zeros: torch.Tensor | None = None) -> Grouped:
    unsigned = codes.view(torch.uint8) ^ 128
    own = torch.zeros_like(scales.values, dtype=torch.float32) if zeros is None else zeros
    return _unsigned(unsigned, 8, scales, own + 128)


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
    made = _unsigned(codes, bits, GroupScales(parts["scales"].T.contiguous()), zeros.T.contiguous())
    return _ordered(made, packed, parts.get("g_idx"))


def _awq(parts: Mapping[str, torch.Tensor]) -> Grouped:
    def in_order(name: str) -> torch.Tensor:
        words = parts[name].T.contiguous()
        of_words = _split(_low_first(words.view(torch.uint8)), (-1, 8))
        codes = of_words.new_empty(len(words), 8, words.shape[1])
        for output, place in enumerate(AWQ_ORDER):
            codes[:, output] = of_words[..., place]
        return codes.flatten(0, 1)

    return _unsigned(in_order("qweight"), 4, GroupScales(parts["scales"].T.contiguous()), in_order("qzeros"))


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
        return _ordered(Grouped(codes, _UP_TO_15 - middle, scales), packed, parts.get("weight_g_idx"))
    return _ordered(_unsigned(codes, bits, scales, zeros), packed, parts.get("weight_g_idx"))


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
