"""Pre-faulted pages: memory that the operating system has ready when the weights are loaded.

On a virtual machine whose host has reclaimed unused memory, the first touch of a page costs many times more than
writing it, and weights touch more than a gigabyte. While modules are imported one core is idle: it touches as much
memory as the weights will take, and frees it when loading begins. On other machines this costs that core a moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator

from ..host.pages import HUGE_PAGE, map_private


@contextlib.contextmanager
def prefaulted_pages(num_bytes: int, before: Callable[[Callable[[], bool]], None]) -> Iterator[None]:
    """Touches pages in a thread while the body runs, at most `num_bytes`.

    before: called first in the thread, with a function that returns whether to continue.
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
            del view  # the map cannot be closed while a view of it exists

    thread = threading.Thread(target=work, name="prefaulted-pages", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
