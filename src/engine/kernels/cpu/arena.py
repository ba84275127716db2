"""Arena: memory for the activations of programs, at addresses that stay.

Programs run one after the other, so all of them begin at the arena's first byte and use the same few pages.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref

import torch

from ...pages import map_private

RESERVED = 1 << 30  # bytes of address space; only what is used becomes memory
_ALIGNMENT = 64


class Arena:
    """Reserves address space. Raises OSError where the machine gives none."""

    def __init__(self, num_bytes: int = RESERVED) -> None:
        self.num_bytes = num_bytes
        self._memory = map_private(num_bytes, huge_pages=False)

    def lease(self) -> Lease:
        """All of it for one program."""
        return Lease(self._memory, self.num_bytes)


class Lease:
    """Tensors in the arena. A place is used again once the tensor that had it, and all views of it, are gone."""

    def __init__(self, memory: mmap.mmap, num_bytes: int) -> None:
        self._memory = memory
        self._free = [(0, num_bytes)]  # begin and end, ascending, none beside the next
        self.num_bytes = 0  # up to the highest byte that was ever used

    def empty(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
        """A contiguous tensor with whatever was there before; None if there is no room."""
        size = shape.numel() * dtype.itemsize
        begin = self._take(-(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT)
        if begin is None:
            return None
        if not size:
            return torch.empty(shape, dtype=dtype)
        owner = (ctypes.c_char * size).from_buffer(self._memory, begin)  # the tensor's storage keeps it
        weakref.finalize(owner, self._give_back, begin, begin + -(-size // _ALIGNMENT) * _ALIGNMENT).atexit = False
        return torch.frombuffer(owner, dtype=dtype).view(shape)

    def _take(self, size: int) -> int | None:
        for index, (begin, end) in enumerate(self._free):  # the lowest place that is large enough
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
