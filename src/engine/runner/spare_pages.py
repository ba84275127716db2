"""Spare pages: memory that the kernel has at hand when the weights ask for it.

On a virtual machine whose host has taken unused memory back, the first touch of a page costs many times what writing it
does, and weights touch more than a gigabyte. One core has nothing to do while modules are imported: it touches as much
memory as the weights will take, and gives it back when they begin. Elsewhere this takes a moment of that core.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator

from ..pages import HUGE_PAGE, map_private


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
            for start in range(0, num_bytes - HUGE_PAGE, HUGE_PAGE):
                if done.is_set():
                    break
                ctypes.memset(address + start, 0, HUGE_PAGE)
            del view  # a view keeps the map from being closed

    thread = threading.Thread(target=work, name="spare-pages", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
