"""Memory mapped directly from the system: private to the process, and unmapped as a whole. Does not use torch."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from concurrent.futures import ThreadPoolExecutor

HUGE_PAGE = 1 << 21
_DONTNEED, _POPULATE_WRITE = 4, 23  # MADV_DONTNEED, MADV_POPULATE_WRITE
_TOUCHED_BYTES = 1 << 25  # by one thread at a time
_madvise = getattr(ctypes.CDLL(None, use_errno=True), "madvise", None) if os.name == "posix" else None
if _madvise is not None:
    _madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


def map_private(num_bytes: int, *, huge_pages: bool = True) -> mmap.mmap:
    """Memory filled with zeros. huge_pages: use them if the system has them. Raises OSError."""
    # Private: most machines have no huge pages for shared memory.
    pages = mmap.mmap(-1, num_bytes, **_PRIVATE)
    if huge_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def populate(address: int, num_bytes: int) -> int:
    """Pre-fault whole pages, as a write would; their contents do not change. Returns 0 or an errno.

    EINVAL: this system does not do it (before Linux 5.14).
    """
    if _madvise is None:
        return errno.EINVAL
    return ctypes.get_errno() if _madvise(address, num_bytes, _POPULATE_WRITE) else 0


def touch_pages(address: int, num_bytes: int, num_threads: int) -> None:
    """Pre-fault whole pages of zeros: the system gives them to several threads faster than to one.

    Raises OSError if the system has too little.
    """

    def touch(start: int) -> None:
        size = min(_TOUCHED_BYTES, num_bytes - start)
        number = populate(address + start, size)
        if number == errno.EINVAL:
            ctypes.memset(address + start, 0, size)
        elif number:
            raise OSError(number, os.strerror(number))  # a write would end the process

    with ThreadPoolExecutor(num_threads, "touch-pages") as threads:
        list(threads.map(touch, range(0, num_bytes, _TOUCHED_BYTES)))


def drop_pages(address: int, num_bytes: int) -> None:
    """Give back whole pages of private memory: they are zeros, and take memory as they are written."""
    if _madvise is not None and num_bytes:
        _madvise(address, num_bytes, _DONTNEED)


def give_back_free() -> None:
    """What malloc keeps of pieces that were freed goes back to the system, where the C library can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
