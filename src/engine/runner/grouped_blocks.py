"""Blocks of GGUF files as grouped weights (kernels/grouped.py): their own codes and scales.

What comes in is the bytes of a matrix, in blocks that each have codes, scales and perhaps minima; what goes out is the
same in separate tensors. A Q4_0 block of 18 bytes has a scale in float16, and 32 codes in the halves of 16 bytes:

    codes [out, in], levels -8 to 7, scales [out, in / 32]

Types below 2 bits have no such form: their numbers are computed instead (dequantise.py). Layouts:
github.com/ggml-org/ggml, src/ggml-common.h.
"""

from __future__ import annotations

import torch

from ...config.checkpoint.stored import BLOCKS
from ..kernels import Grouped, GroupScales
from ..kernels.dequantise_packed import exponents
from ..kernels.stored_codes import CodeKind, StoredCodes
from .grouped_codes import FP4_LEVELS, INT8_LEVELS, UP_TO_15, UP_TO_63, has_least, sign_and_size, split, unsigned_int8

_IQ4 = torch.tensor((-127.0, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))


def of_blocks(content: torch.Tensor, dtype: str, shape: tuple[int, int]) -> Grouped | None:
    """content: [bytes] uint8. dtype: one of BLOCKS. None for a type that has no such form."""
    make = _OF_BLOCKS.get(dtype)
    elements, size = BLOCKS[dtype]
    return None if make is None else make(content.view(shape[0], shape[1] // elements, size))


def _halves(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """blocks: [out, blocks, even number of bytes]. at: of a number in each. Returns [out, blocks] float16."""
    return blocks.view(torch.float16)[..., at // 2].contiguous()


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
        lambda: _nibbles(split(blocks[..., head:], (-1, run))).flatten(1),
        (elements, size, head, run),
    )


def _runs_of_16(blocks: torch.Tensor, num_runs: int = 1) -> StoredCodes:
    return _of_halves(blocks, blocks.shape[-1] - 16 * num_runs, 16)


def _q4(blocks: torch.Tensor) -> Grouped:
    has_minima = blocks.shape[-1] == 20
    codes, scales = _runs_of_16(blocks), GroupScales(_halves(blocks, 0))
    if has_minima:
        return Grouped(codes, UP_TO_15, scales, minima=GroupScales(-_halves(blocks, 2)))
    return Grouped(codes, UP_TO_15 - 8, scales)


def _q5(blocks: torch.Tensor) -> Grouped:
    has_minima = blocks.shape[-1] == 24
    codes = (_nibbles(blocks[..., -16:]) | _bits(blocks[..., -20:-16]) << 4).flatten(1)
    scales = GroupScales(_halves(blocks, 0))
    if has_minima:
        return Grouped(codes, UP_TO_63, scales, minima=GroupScales(-_halves(blocks, 2)))
    return Grouped(codes, UP_TO_63 - 16, scales)


def _q8_0(blocks: torch.Tensor) -> Grouped:
    codes, scales = blocks[..., 2:].view(torch.int8), GroupScales(_halves(blocks, 0))
    if has_least(codes):
        return unsigned_int8(codes.flatten(1), scales)
    shape = blocks.shape[0], blocks.shape[1] * 32
    stored = StoredCodes(blocks, CodeKind.SIGNED_BYTES, shape, lambda: sign_and_size(codes).flatten(1), (32, 34, 2, 0))
    return Grouped(stored, INT8_LEVELS, scales)


def _q2_k(blocks: torch.Tensor) -> Grouped:
    packed = blocks[..., :16].flatten(1)
    codes = _pairs(blocks[..., 16:80])
    scales = GroupScales(packed & 15, _halves(blocks, 80))
    return Grouped(codes.flatten(1), UP_TO_15, scales, minima=GroupScales(packed >> 4, _halves(blocks, 82)))


def _pairs(fields: torch.Tensor) -> torch.Tensor:
    """fields: [..., 32 * n]: of every 32 bytes the lowest two bits, then the next two, and so on. [..., 128 * n]."""
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    return (split(fields, (-1, 1, 32)) >> shifts & 3).flatten(-3)


def _q3_k(blocks: torch.Tensor) -> Grouped:
    shifts = torch.arange(8, dtype=torch.uint8)[:, None]
    high = (blocks[..., None, :32] >> shifts & 1).flatten(-2)
    codes = _pairs(blocks[..., 32:96]) | high << 2
    packed = blocks[..., 96:108]
    low = torch.cat((packed[..., :8] & 15, packed[..., :8] >> 4), -1)
    upper = (packed[..., None, 8:] >> torch.arange(0, 8, 2, dtype=torch.uint8)[:, None] & 3).flatten(-2)
    scales = (low | upper << 4).to(torch.int8) - 32
    levels = UP_TO_15 - 4
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
    return Grouped(codes, UP_TO_15, GroupScales(scales, outer), minima=GroupScales(minima, outer_minima))


def _q5_k(blocks: torch.Tensor) -> Grouped:
    scales, minima = _scales_and_minima(blocks)
    shifts = torch.arange(8, dtype=torch.uint8)[:, None]
    high = (blocks[..., None, 16:48] >> shifts & 1).flatten(-2)
    codes = _nibbles(split(blocks[..., 48:], (4, 32))).flatten(-2) | high << 4
    outer, outer_minima = _halves(blocks, 0), _halves(blocks, 2)
    return Grouped(codes.flatten(1), UP_TO_63, GroupScales(scales, outer), minima=GroupScales(minima, outer_minima))


def _q6_k(blocks: torch.Tensor) -> Grouped:
    def unpack() -> torch.Tensor:
        low = _nibbles(split(blocks[..., :128], (2, 64))).flatten(-2)
        return (low | _pairs(blocks[..., 128:192]) << 4).flatten(1)

    codes = StoredCodes(blocks, CodeKind.Q6_K, (blocks.shape[0], blocks.shape[1] * 256), unpack, (256, 210, 0, 0))
    scales = blocks[..., 192:208].contiguous().view(torch.int8).flatten(1)
    return Grouped(codes, UP_TO_63 - 32, GroupScales(scales, _halves(blocks, 208)))


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
    return Grouped(_runs_of_16(blocks), FP4_LEVELS, GroupScales(scales))


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
