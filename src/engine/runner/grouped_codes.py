"""Codes of integers as grouped weights have them (kernels/grouped.py), whatever their checkpoint.

A level of 8 bits has a sign and a size, so that kernels need a table of the sizes only. Integers become such codes:

    int8 from -127 to 127             sign and size: levels -127 to 127
    unsigned, or with a -128          levels -127.5 to 127.5 in steps of 1, and zeros that are smaller by 127.5
"""

from __future__ import annotations

import torch

from ..kernels import Grouped, GroupScales
from ..kernels.dequantise_packed import FP4
from ..kernels.stored_codes import CodeKind, StoredCodes

_SIZES = torch.arange(128.0)
_HALVES = torch.cat((_SIZES + 0.5, -_SIZES - 0.5))  # of unsigned bytes c: c - 127.5
_MIDDLE = 127.5
INT8_LEVELS = torch.cat((_SIZES, -_SIZES))  # of sign and size
FP4_LEVELS = torch.tensor((*FP4, *(-level for level in FP4)))
UP_TO_15, UP_TO_63 = torch.arange(16.0), torch.arange(64.0)


def signed_int8(codes: torch.Tensor, scales: GroupScales, zeros: torch.Tensor | None = None) -> Grouped:
    """codes: [out, in] int8. zeros: [out, groups] or None."""
    if zeros is not None or has_least(codes):
        return unsigned_int8(codes, scales, zeros)
    codes = codes.contiguous()
    shape = codes.shape[0], codes.shape[1]
    return Grouped(StoredCodes(codes, CodeKind.SIGNED_BYTES, shape, lambda: sign_and_size(codes)), INT8_LEVELS, scales)


def has_least(codes: torch.Tensor) -> bool:
    """Whether a number is -128, which sign and size in 8 bits do not have."""
    return bool(codes.numel()) and int(codes.min()) == -128


def sign_and_size(codes: torch.Tensor) -> torch.Tensor:
    return codes.abs().view(torch.uint8) | (codes.contiguous().view(torch.uint8) & 128)


def unsigned_int8(codes: torch.Tensor, scales: GroupScales, zeros: torch.Tensor | None = None) -> Grouped:
    """The same for codes that sign and size cannot represent: 128 is added to codes and zeros."""
    if zeros is None:
        zeros = torch.zeros_like(scales.values, dtype=torch.float32)
    return unsigned(codes.view(torch.uint8) ^ 128, 8, scales, zeros + 128)


def unsigned(codes: torch.Tensor | StoredCodes, bits: int, scales: GroupScales, zeros: torch.Tensor) -> Grouped:
    """(codes - zeros) * scales. zeros: [out, groups]."""
    if bits < 8:
        return Grouped(codes, UP_TO_15, scales, zeros.float())
    codes = codes if isinstance(codes, torch.Tensor) else codes.unpack()
    signed = torch.where(codes >= 128, codes - 128, 255 - codes)  # 127 - c with the bit of the sign
    return Grouped(signed, _HALVES, scales, zeros.float() - _MIDDLE)


def split(fields: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """Split the last dimension into several."""
    return fields.reshape(*fields.shape[:-1], *sizes)
