"""KVMemory: the KV cache's address space, reserved at once, its pages asked for a part at a time. Knows no torch.

A first touch can cost seconds per GiB: the host of a virtual machine has taken unused memory back. So only what the
first requests use is touched before the engine is ready. The rest follows in a thread while no step runs, lowest blocks
first, as the pool lends them; a step that is faster takes its pages as it writes, and none is ever touched twice.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import math
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable

from ...config import Resolved
from ..pages import HUGE_PAGE, map_private

_madvise = getattr(ctypes.CDLL(None, use_errno=True), "madvise", None) if os.name == "posix" else None
if _madvise is not None:
    _madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14: as a write would, contents stay, failure is an error
WAIT_S = 0.05
logger = logging.getLogger(__name__)


class KVMemory:
    """Zeros, in equal regions one behind the other, all of which fill from their beginnings at the same time."""

    def __init__(self, num_bytes: int, num_regions: int, first_share: float = 1.0) -> None:
        """first_share: of every region, what must be there before the engine is ready.

        Raises MemoryError, with the number, if the machine will not reserve so much.
        """
        self.num_bytes = num_bytes
        self._num_regions, self._region_bytes = num_regions, num_bytes // num_regions
        self._first_bytes = min(self._region_bytes, math.ceil(self._region_bytes * first_share))
        try:
            # Huge pages: attention reads at random, and small ones cost it address translations. The surplus lets it
            # begin with a whole one.
            self._map = map_private(num_bytes + HUGE_PAGE)
        except OSError as error:
            raise self._refused(error.strerror or "") from error
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._begin = -base % HUGE_PAGE
        self._address = base + self._begin
        self._touched = 0  # bytes of each region
        self._is_over = _madvise is None  # nothing more is done ahead of the steps
        self._failure: MemoryError | None = None
        self._lock = threading.Lock()

    @property
    def buffer(self) -> memoryview:
        return memoryview(self._map)[self._begin : self._begin + self.num_bytes]

    @property
    def num_untouched(self) -> int:
        return self.num_bytes - self._touched * self._num_regions

    def check(self) -> None:
        """Raises MemoryError if the system has refused some of it."""
        if self._failure is not None:
            raise self._failure

    def touch_first(self, go_on: Callable[[], bool] = lambda: True) -> None:
        """Take what must be there at once, while nothing is stored yet.

        Writes: to populate would hold up whatever the process maps meanwhile, and twice as long modules take to load.
        """
        with self._lock:
            while self._touched < self._first_bytes and go_on():
                size = min(HUGE_PAGE, self._region_bytes - self._touched)
                for start in range(self._touched, self.num_bytes, self._region_bytes):
                    ctypes.memset(self._address + start, 0, size)
                self._touched += size

    def check_room(self, available_bytes: int) -> None:
        """Raises MemoryError if the machine has not enough for the rest."""
        if self.num_untouched > available_bytes:
            raise self._refused(f"{self.num_untouched} are still to be had, {available_bytes} are available")

    def touch_behind(self, may_touch: Callable[[], bool]) -> threading.Thread:
        """Take the rest in a thread, which ends when the memory is given up.

        may_touch: asked before every huge page; while it objects the thread waits.
        """
        arguments = (weakref.ref(self), may_touch)
        thread = threading.Thread(target=_touch_behind, args=arguments, name="kv-memory", daemon=True)
        thread.start()
        return thread

    def _touch_next(self, may_touch: Callable[[], bool]) -> bool:
        """Go a huge page further in every region; False if `may_touch` objects or there is nothing more to do."""
        with self._lock:
            size = min(HUGE_PAGE, self._region_bytes - self._touched)
            for start in range(self._touched, self.num_bytes, self._region_bytes):
                # what was taken before an objection is passed over quickly in the next round
                if self._is_over or not may_touch() or not self._take(self._address + start, size):
                    return False
            self._touched += size
            self._is_over = not self.num_untouched
            return True

    def _take(self, address: int, size: int) -> bool:
        assert _madvise is not None
        begin = address & -mmap.PAGESIZE
        if not _madvise(begin, address + size - begin, _POPULATE_WRITE):
            return True
        self._is_over = True
        if ctypes.get_errno() != errno.EINVAL:  # that one says that this system does not know the call: steps touch
            self._failure = self._refused(os.strerror(ctypes.get_errno()))
        return False

    def _refused(self, reason: str) -> MemoryError:
        return MemoryError(f"KV cache: the machine does not give all of its {self.num_bytes} bytes: {reason}")


def _touch_behind(memory_of: weakref.ref[KVMemory], may_touch: Callable[[], bool]) -> None:
    while (memory := memory_of()) is not None and not memory._is_over:
        if not may_touch() or not memory._touch_next(may_touch):
            del memory  # not held while nothing is done
            time.sleep(WAIT_S)
    if memory is not None and memory._failure is not None:
        logger.critical("%s; steps fail from now on", memory._failure)


def reserve_kv_memory(resolved: Resolved) -> KVMemory:
    """Of the size that was planned. Raises MemoryError."""
    first_share = resolved.scheduler.max_num_batched_tokens / resolved.num_kv_tokens  # what one step can write
    return KVMemory(resolved.memory.kv_cache_bytes, 2 * resolved.facts.num_layers, first_share)


class Quiet:
    """Whether no step has run for `WAIT_S`: the gaps between steps are not for the thread."""

    def __init__(self, count_steps: Callable[[], int | None], clock: Callable[[], float] = time.monotonic) -> None:
        """count_steps: those carried out so far, None during one."""
        self._count_steps, self._clock = count_steps, clock
        self._seen: int | None = None
        self._since = 0.0

    def __call__(self) -> bool:
        count = self._count_steps()
        if count is None or count != self._seen:
            self._seen, self._since = count, self._clock()
            return False
        return self._clock() - self._since >= WAIT_S
