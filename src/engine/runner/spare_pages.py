"""Spare pages: memory that the kernel has at hand when the weights ask for it.

On a virtual machine whose host has taken unused memory back, the first touch of a page costs many times what writing it
does, and weights touch more than a gigabyte. One core has nothing to do while modules are imported: it touches as much
memory as the weights will take, and gives it back when they begin. Elsewhere this takes a moment of that core.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Callable, Iterator

_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
_PIECE = 1 << 21  # a huge page


def map_private(num_bytes: int) -> mmap.mmap:
    """Zeros, with huge pages where the system has them. Raises OSError."""
    # Private: shared memory gets no huge pages on most machines.
    pages = mmap.mmap(-1, num_bytes, **_PRIVATE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


@contextlib.contextmanager
def spare_pages(num_bytes: int, before: Callable[[Callable[[], bool]], None]) -> Iterator[None]:
    """Touches pages in a thread as long as the body runs, `num_bytes` at most.

    before: what the thread does first; it is given a function that tells whether to go on.
    """
    done = threading.Event()

    def work() -> None:
        before(lambda: not done.is_set())
        with contextlib.suppress(OSError), map_private(num_bytes) as pages:
            view = ctypes.c_char.from_buffer(pages)
            address = ctypes.addressof(view)
            for start in range(0, num_bytes - _PIECE, _PIECE):
                if done.is_set():
                    break
                ctypes.memset(address + start, 0, _PIECE)
            del view  # a view keeps the map from being closed

    thread = threading.Thread(target=work, name="spare-pages", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
