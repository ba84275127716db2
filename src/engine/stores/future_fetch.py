"""FutureFetch: blocks that a thread of a pool reads."""

from __future__ import annotations

import logging
from concurrent.futures import Future

logger = logging.getLogger(__name__)


class FutureFetch:
    """Implements Fetch of core/block_store.py."""

    def __init__(self, reading: Future[list[memoryview]]) -> None:
        self._reading = reading

    @property
    def is_done(self) -> bool:
        return self._reading.done()

    @property
    def contents(self) -> list[memoryview]:
        """Empty if reading has failed: a store that does not work costs time, and ends no engine."""
        if self._reading.cancelled():
            return []
        if (error := self._reading.exception()) is not None:
            logger.error("stored KV blocks cannot be read, their tokens are computed", exc_info=error)
            return []
        return self._reading.result()
