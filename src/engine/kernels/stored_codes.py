"""Codes of a quantised matrix as a file has them.

C++ reads them while it packs (cpu/pack_codes.h); torch unpacks them, a byte for each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import torch


class CodeKind(IntEnum):
    """Kinds of codes in cpu/pack_codes.h."""

    BYTES = 0
    SIGNED_BYTES = 1
    NIBBLE_PAIRS = 2
    NIBBLE_HALVES = 3
    Q6_K = 4
    DEEP_WORDS = 5


@dataclass(frozen=True, slots=True)
class StoredCodes:
    content: torch.Tensor  # its first dimension is the rows of the file; contiguous
    kind: CodeKind
    shape: tuple[int, int]  # [out, in]
    unpack: Callable[[], torch.Tensor]  # the reference: [out, in] uint8
    block: tuple[int, int, int, int] = (1, 1, 0, 0)  # its elements, bytes, bytes before the codes, bytes of a run

    @property
    def nbytes(self) -> int:
        """Bytes of the unpacked codes."""
        return self.shape[0] * self.shape[1]

    def __getitem__(self, rows: slice | torch.Tensor) -> torch.Tensor:
        return self.unpack()[rows]


def form_of(codes: torch.Tensor | StoredCodes) -> bytes:
    """A CodeForm of cpu/pack_codes.h."""
    if isinstance(codes, torch.Tensor):
        return struct.pack("=6q", CodeKind.BYTES, codes.shape[1], 1, 1, 0, 0)
    row_bytes = codes.content.nbytes // max(1, len(codes.content))
    return struct.pack("=6q", codes.kind, row_bytes, *codes.block)
