"""Memory straight from the system: private to the process, given back as a whole. Knows no torch."""

from __future__ import annotations

import mmap

HUGE_PAGE = 1 << 21
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


def map_private(num_bytes: int, *, huge_pages: bool = True) -> mmap.mmap:
    """Zeros. huge_pages: where the system has them. Raises OSError."""
    # Private: shared memory gets no huge pages on most machines.
    pages = mmap.mmap(-1, num_bytes, **_PRIVATE)
    if huge_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages
