"""FutureFetch: blocks that a thread of a pool reads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future

logger = logging.getLogger(__name__)


class FutureFetch:
    """Implements Fetch of core/block_store.py."""

    def __init__(self, reading: Future[list[memoryview]], is_overdue: Callable[[], bool] = lambda: False) -> None:
        """is_overdue: whether reading is not waited for any longer."""
        self._reading, self._is_overdue = reading, is_overdue
        self._is_given_up = False

    @property
    def is_done(self) -> bool:
        if not self._reading.done() and self._is_overdue():
            self._is_given_up = True
        return self._is_given_up or self._reading.done()

    @property
    def contents(self) -> list[memoryview]:
        """Contents of the blocks; empty if reading failed: a broken store costs time, and ends no engine."""
        if self._is_given_up or self._reading.cancelled():
            return []
        if (error := self._reading.exception()) is not None:
            logger.error("stored KV blocks cannot be read, their tokens are computed", exc_info=error)
            return []
        return self._reading.result()
