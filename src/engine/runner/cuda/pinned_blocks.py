"""PinnedBlocks: memory of the host for stored KV blocks, from which and to which a device copies by itself.

A store keeps the contents of blocks in it, and does not depend on it: memory is free again once the last view of it
is gone. Pinning takes milliseconds, so what a store may keep is allocated at the start.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import numpy.typing as npt
import torch

_PIECE_BYTES = 1 << 26  # torch rounds a pinned allocation up to a power of two: at most one block of a piece is lost

Row = npt.NDArray[np.uint8]


class PinnedBlocks:
    def __init__(self, block_bytes: int, num_blocks: int, *, is_pinned: bool) -> None:
        """num_blocks: to allocate now; more are allocated when they are needed. Raises MemoryError."""
        self.block_bytes, self._is_pinned = block_bytes, is_pinned
        self._per_piece = max(1, _PIECE_BYTES // block_bytes)
        self._free: deque[Row] = deque()
        self._pieces: list[torch.Tensor] = []
        while len(self._free) < num_blocks:
            self._grow(min(self._per_piece, num_blocks - len(self._free)))

    @property
    def num_bytes(self) -> int:
        return sum(piece.numel() for piece in self._pieces)

    def take(self) -> memoryview:
        """Memory for a block, [block_bytes], which nothing else uses while the view or one made from it exists.

        Raises MemoryError.
        """
        if not self._free:
            self._grow(self._per_piece)
        row = self._free.pop()
        view = row[:]
        # Called in the thread that drops the last view: append of a deque needs no lock.
        weakref.finalize(view, self._free.append, row).atexit = False
        return view.data

    def _grow(self, count: int) -> None:
        try:
            piece = torch.empty(count, self.block_bytes, dtype=torch.uint8, pin_memory=self._is_pinned)
        except RuntimeError as error:
            held = f"after {self.num_bytes} bytes: {error}"
            raise MemoryError(f"the system pins no more memory for stored KV blocks, {held}") from error
        self._pieces.append(piece)
        self._free.extend(piece.numpy())
