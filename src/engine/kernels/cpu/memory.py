"""Memory for results: kept when their tensors are gone, and in huge pages.

malloc gives large pieces back to the system and takes them again, small page by small page, for every op of every
layer: a step of 2048 tokens took 129 thousand page faults.
"""

from __future__ import annotations

import math
import weakref
from collections import defaultdict

import numpy as np
import numpy.typing as npt
import torch

from ...pages import HUGE_PAGE, map_private

_LEAST = 2**20  # bytes below which malloc keeps pieces anyway

Piece = npt.NDArray[np.uint8]


class ResultMemory:
    """Holds as much as was in use at once; sizes are powers of two, of which only what is written to takes memory."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Piece]] = defaultdict(list)  # by size

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor with whatever its memory held before."""
        count = math.prod(shape)
        num_bytes = count * dtype.itemsize
        if num_bytes < _LEAST:
            return torch.empty(shape, dtype=dtype)
        size = max(HUGE_PAGE, 1 << (num_bytes - 1).bit_length())
        free = self._free[size]
        piece = free.pop() if free else _new_piece(size)
        lent = piece[:num_bytes]
        # The tensor's storage, and so every view of it, keeps `lent`; the piece is free when the last of them is gone.
        weakref.finalize(lent, free.append, piece).atexit = False
        return torch.frombuffer(lent, dtype=dtype, count=count).view(shape)


def _new_piece(size: int) -> Piece:
    piece = np.frombuffer(map_private(size + HUGE_PAGE), np.uint8)
    first = -piece.ctypes.data % HUGE_PAGE
    return piece[first : first + size]
