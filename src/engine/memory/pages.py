"""Memory mapped directly from the system: private to the process, and unmapped as a whole. Does not use torch."""

from __future__ import annotations

import ctypes
import mmap

HUGE_PAGE = 1 << 21
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


def map_private(num_bytes: int, *, huge_pages: bool = True) -> mmap.mmap:
    """Memory filled with zeros. huge_pages: use them if the system has them. Raises OSError."""
    # Private: most machines have no huge pages for shared memory.
    pages = mmap.mmap(-1, num_bytes, **_PRIVATE)
    if huge_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def give_back_free() -> None:
    """What malloc keeps of pieces that were freed goes back to the system, where the C library can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
