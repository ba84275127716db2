"""KVMemory: the KV cache's address space, reserved in one piece, with pages requested in parts. Does not use torch.

A first touch can cost seconds per GiB if the host of a virtual machine has reclaimed unused memory. So only the pages
of the first requests are touched before the engine is ready. A background thread touches the rest while no step runs,
lowest blocks first, the order in which the pool lends them. A step that writes to a page before the thread gets there
takes the page itself; no page is touched twice.
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
from ..host.pages import HUGE_PAGE, drop_pages, map_private, populate

WAIT_S = 0.05
logger = logging.getLogger(__name__)


class KVMemory:
    """Zeros, in consecutive regions of equal size. All regions are touched from their beginnings, in step."""

    def __init__(self, num_bytes: int, num_regions: int, first_share: float = 1.0) -> None:
        """first_share: of every region, the share that must be resident before the engine is ready.

        Raises MemoryError, with the number of bytes, if the system refuses to reserve them.
        """
        self.num_bytes = num_bytes
        self._num_regions, self._region_bytes = num_regions, num_bytes // max(1, num_regions)
        self._first_bytes = min(self._region_bytes, math.ceil(self._region_bytes * first_share))
        try:
            # Huge pages: attention reads at random, and small pages cost it address translations. The extra page lets
            # the cache begin at a page boundary.
            self._map = map_private(num_bytes + HUGE_PAGE)
        except OSError as error:
            raise self._refused(error.strerror or "") from error
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._begin = -base % HUGE_PAGE
        self._address = base + self._begin
        self._touched = 0  # bytes of each region
        self._is_over = not num_bytes  # nothing more is touched in advance
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
        """Touches the first share, while nothing is stored yet.

        By writing: MADV_POPULATE_WRITE holds the lock on the process's memory map, and modules would take twice as
        long to load meanwhile.
        """
        with self._lock:
            while self._touched < self._first_bytes and go_on():
                size = min(HUGE_PAGE, self._region_bytes - self._touched)
                for start in range(self._touched, self.num_bytes, self._region_bytes):
                    ctypes.memset(self._address + start, 0, size)
                self._touched += size

    def free(self) -> None:
        """Give all pages back: they are zeros, and take memory as they are written. None are touched in advance."""
        with self._lock:
            self._is_over = True
            self._touched = 0
            drop_pages(self._address, self.num_bytes)

    def check_room(self, available_bytes: int) -> None:
        """Raises MemoryError if the machine has too little for the rest."""
        if self.num_untouched > available_bytes:
            raise self._refused(f"{self.num_untouched} are not resident yet, {available_bytes} are available")

    def touch_in_background(self, may_touch: Callable[[], bool]) -> threading.Thread:
        """Touches the rest in a thread, which ends when the memory is released.

        may_touch: called before every huge page; the thread waits while it returns False.
        """
        arguments = (weakref.ref(self), may_touch)
        thread = threading.Thread(target=_touch_in_background, args=arguments, name="kv-memory", daemon=True)
        thread.start()
        return thread

    def _touch_next(self, may_touch: Callable[[], bool]) -> bool:
        """Touches the next huge page of every region; False if `may_touch` returned False or nothing is left."""
        with self._lock:
            size = min(HUGE_PAGE, self._region_bytes - self._touched)
            for start in range(self._touched, self.num_bytes, self._region_bytes):
                # pages touched before an interruption are skipped quickly in the next round
                if self._is_over or not may_touch() or not self._take(self._address + start, size):
                    return False
            self._touched += size
            self._is_over = not self.num_untouched
            return True

    def _take(self, address: int, size: int) -> bool:
        begin = address & -mmap.PAGESIZE
        number = populate(begin, address + size - begin)
        if not number:
            return True
        self._is_over = True
        if number != errno.EINVAL:  # not supported by this kernel: steps touch the pages
            self._failure = self._refused(os.strerror(number))
        return False

    def _refused(self, reason: str) -> MemoryError:
        return MemoryError(f"KV cache: the system does not provide all of its {self.num_bytes} bytes: {reason}")


def _touch_in_background(memory_of: weakref.ref[KVMemory], may_touch: Callable[[], bool]) -> None:
    while (memory := memory_of()) is not None and not memory._is_over:
        if not may_touch() or not memory._touch_next(may_touch):
            del memory  # releases the memory if the engine has dropped it
            time.sleep(WAIT_S)
    if memory is not None and memory._failure is not None:
        logger.critical("%s; all further steps fail", memory._failure)


def reserve_kv_memory(resolved: Resolved, stage: int = 0) -> KVMemory:
    """Memory of the size that the layers of a stage need. Raises MemoryError."""
    first_share = resolved.scheduler.max_num_batched_tokens / resolved.num_kv_tokens  # what one step can write
    num_regions = len(resolved.rank_spec.keeps.tensors) * resolved.stage_groups(stage).num_planes
    return KVMemory(resolved.stage_kv_bytes(stage), num_regions, first_share)


class IdleGap:
    """Whether no step has run for `WAIT_S`. The short gaps between steps are too short to touch pages in."""

    def __init__(self, count_steps: Callable[[], int | None], clock: Callable[[], float] = time.monotonic) -> None:
        """count_steps: number of steps executed so far, None while one runs."""
        self._count_steps, self._clock = count_steps, clock
        self._seen: int | None = None
        self._since = 0.0

    def __call__(self) -> bool:
        count = self._count_steps()
        if count is None or count != self._seen:
            self._seen, self._since = count, self._clock()
            return False
        return self._clock() - self._since >= WAIT_S
