"""Memory for results: kept after its tensors are gone, and in huge pages.

malloc returns large pieces to the system and asks for them again, small page by small page, for every op of every
layer: a step of 2048 tokens took 129 thousand page faults.
"""

from __future__ import annotations

import math
import weakref
from collections import defaultdict

import numpy as np
import numpy.typing as npt
import torch

from ...host.pages import HUGE_PAGE, map_private

_LEAST = 2**20  # bytes; malloc keeps smaller pieces itself

Piece = npt.NDArray[np.uint8]


class ResultMemory:
    """Holds the most that was ever in use. Sizes are powers of two; only pages that are written to take memory."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Piece]] = defaultdict(list)  # by size

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised contiguous tensor."""
        count = math.prod(shape)
        num_bytes = count * dtype.itemsize
        if num_bytes < _LEAST:
            return torch.empty(shape, dtype=dtype)
        size = max(HUGE_PAGE, 1 << (num_bytes - 1).bit_length())
        free = self._free[size]
        piece = free.pop() if free else _new_piece(size)
        lent = piece[:num_bytes]
        # The tensor's storage, and so every view of it, references `lent`: the piece is free when the last one is gone.
        weakref.finalize(lent, free.append, piece).atexit = False
        return torch.frombuffer(lent, dtype=dtype, count=count).view(shape)


def _new_piece(size: int) -> Piece:
    piece = np.frombuffer(map_private(size + HUGE_PAGE), np.uint8)
    first = -piece.ctypes.data % HUGE_PAGE
    return piece[first : first + size]
