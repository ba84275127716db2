"""Arena: memory for the activations of captured graphs, at addresses that stay the same.

Only one graph runs at a time, so every graph begins at the arena's first byte and all use the same few pages.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref

import torch

from ...host.pages import map_private

RESERVED = 1 << 30  # bytes of address space; only pages that are written to take memory
_ALIGNMENT = 64


class Arena:
    """Reserves address space. Raises OSError if the system refuses."""

    def __init__(self, num_bytes: int = RESERVED) -> None:
        self.num_bytes = num_bytes
        self._memory = map_private(num_bytes, huge_pages=False)

    def lease(self) -> Lease:
        """The whole arena for one graph."""
        return Lease(self._memory, self.num_bytes)


class Lease:
    """Allocates tensors in the arena. Memory is reused once its tensor and all views of that tensor are gone."""

    def __init__(self, memory: mmap.mmap, num_bytes: int) -> None:
        self._memory = memory
        self._free = [(0, num_bytes)]  # begin and end, ascending, never adjacent
        self.num_bytes = 0  # up to the highest byte that was ever used

    def empty(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
        """An uninitialised contiguous tensor; None if it does not fit."""
        size = shape.numel() * dtype.itemsize
        begin = self._take(-(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT)
        if begin is None:
            return None
        if not size:
            return torch.empty(shape, dtype=dtype)
        owner = (ctypes.c_char * size).from_buffer(self._memory, begin)  # referenced by the tensor's storage
        weakref.finalize(owner, self._give_back, begin, begin + -(-size // _ALIGNMENT) * _ALIGNMENT).atexit = False
        return torch.frombuffer(owner, dtype=dtype).view(shape)

    def _take(self, size: int) -> int | None:
        for index, (begin, end) in enumerate(self._free):  # first fit, from the lowest address
            if end - begin >= size:
                self._free[index : index + 1] = [(begin + size, end)] if end - begin > size else []
                self.num_bytes = max(self.num_bytes, begin + size)
                return begin
        return None

    def _give_back(self, begin: int, end: int) -> None:
        joined: list[tuple[int, int]] = []
        for first, last in sorted([*self._free, (begin, end)]):
            if joined and joined[-1][1] == first:
                joined[-1] = (joined[-1][0], last)
            else:
                joined.append((first, last))
        self._free = joined
