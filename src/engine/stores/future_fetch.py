"""FutureFetch: blocks that a thread of a pool reads."""

from __future__ import annotations

from concurrent.futures import Future


class FutureFetch:
    """Implements Fetch of core/block_store.py."""

    def __init__(self, reading: Future[list[memoryview]]) -> None:
        self._reading = reading

    @property
    def is_done(self) -> bool:
        return self._reading.done()

    @property
    def contents(self) -> list[memoryview]:
        return [] if self._reading.cancelled() else self._reading.result()
