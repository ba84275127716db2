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

_PIECE_BYTES = 1 << 26  # of an allocation, if this is no smaller than a block
_MIN_USE = 7 / 8  # of an allocation: torch rounds what is pinned up to a power of two

Row = npt.NDArray[np.uint8]


class PinnedBlocks:
    def __init__(self, block_bytes: int, num_blocks: int, *, is_pinned: bool) -> None:
        """num_blocks: to allocate now; more are allocated when they are needed. Raises MemoryError."""
        self.block_bytes, self._is_pinned = block_bytes, is_pinned
        self._free: deque[Row] = deque()
        self._pieces: list[torch.Tensor] = []
        while len(self._free) < num_blocks:
            self._grow(blocks_of_piece(block_bytes, num_blocks - len(self._free)))

    @property
    def num_bytes(self) -> int:
        return sum(piece.numel() for piece in self._pieces)

    def take(self) -> memoryview:
        """Memory for a block, [block_bytes], which nothing else uses while the view or one made from it exists.

        Raises MemoryError.
        """
        if not self._free:
            self._grow(blocks_of_piece(self.block_bytes))
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


def blocks_of_piece(block_bytes: int, most: int | None = None) -> int:
    """How many blocks to allocate together, at most `most`: the fewest that use what torch pins, else the best."""
    smallest = max(_PIECE_BYTES, rounded_bytes(block_bytes))
    fitting = [(smallest << doublings) // block_bytes for doublings in range(4)]
    counts = fitting if most is None else [min(each, most) for each in fitting]

    def use(count: int) -> float:
        return count * block_bytes / rounded_bytes(count * block_bytes)

    return next((each for each in counts if use(each) >= _MIN_USE), max(counts, key=lambda each: (use(each), each)))


def rounded_bytes(num_bytes: int) -> int:
    """What torch pins for an allocation."""
    return 1 << (num_bytes - 1).bit_length()
