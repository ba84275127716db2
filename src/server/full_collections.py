"""FullCollections: when the garbage collector visits all objects.

Python starts such a pass whenever the number of long-lived objects has grown by a quarter, so several times while a
thousand sequences begin. Each took 0.1 to 0.4 s of CPU then, in which no request is answered. Here it runs while no
request is open, or when much may have to be freed, and never for more than a small part of the time. Passes over
younger objects, which free what most requests leave, are as they were.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

CHECK_INTERVAL_S = 1.0
# Passes over younger objects since the last full one, each after 7000 more objects were made than freed.
DUE = 10  # Python's own limit
OVERDUE = 100  # 700,000 objects, which may be a hundred MB
MAX_SHARE = 0.01  # of the time
_NEVER = 1 << 30


class FullCollections:
    def __init__(self, num_requests: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        """num_requests: open ones."""
        self._num_requests = num_requests
        self._clock = clock
        self._not_before = clock()

    async def run(self) -> None:
        """Run until it is cancelled. Python starts no full pass meanwhile."""
        thresholds = gc.get_threshold()
        gc.set_threshold(*thresholds[:2], _NEVER)
        try:
            while True:
                await asyncio.sleep(CHECK_INTERVAL_S)
                self.check(gc.get_count()[2])
        finally:
            gc.set_threshold(*thresholds)

    def check(self, num_passes: int) -> bool:
        """Collect if it is time to. num_passes: over younger objects, since the last full one."""
        began = self._clock()
        limit = OVERDUE if self._num_requests() else DUE
        if num_passes < limit or began < self._not_before:
            return False
        gc.collect()
        ended = self._clock()
        self._not_before = ended + (ended - began) / MAX_SHARE
        return True
