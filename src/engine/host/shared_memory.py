"""SharedMemory: memory of processes of one machine that exchange (kernels/exchange.py), without torch.

Also of the process that starts them, and ends their waiting when one has ended.
"""

from __future__ import annotations

import ctypes
import mmap
import os

MAX_RANKS = 63
_HEADER_BYTES, _PLACE_BYTES = 4096, 1 << 20  # of kernels/cpu/exchange.cpp


class SharedMemory:
    """Memory of the ranks of one model, by a file descriptor that child processes inherit."""

    def __init__(self, fd: int, num_ranks: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, _num_bytes(num_ranks))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @classmethod
    def new(cls, num_ranks: int) -> SharedMemory:
        """Raises OSError. The memory is taken when it is written: a page more for each size of a step."""
        fd = os.memfd_create("stoker-exchange")
        os.ftruncate(fd, _num_bytes(num_ranks))
        return cls(fd, num_ranks)

    def has_more(self, rank: int, other: int) -> bool:
        """Whether rank `other` has written a piece for which it waits for `rank`."""
        own, its = (int.from_bytes(self._map[at : at + 8], "little") for at in map(_counter_at, (rank, other)))
        return its > own

    @property
    def is_closed(self) -> bool:
        return self._map[0] != 0

    def close_exchange(self) -> None:
        """All functions that wait in it, in every process, raise ExchangeClosed."""
        self._map[:4] = b"\1\0\0\0"


def _counter_at(rank: int) -> int:
    """Offset of the counter of pieces that a rank has written, in the header of kernels/cpu/exchange.cpp."""
    return 64 * (1 + rank)


def _num_bytes(num_ranks: int) -> int:
    return _HEADER_BYTES + 2 * num_ranks * _PLACE_BYTES
