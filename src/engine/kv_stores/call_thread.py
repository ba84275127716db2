"""CallThread: calls of code that may hang, one after the other, in a thread that keeps no process from ending."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

_POLL_S = 0.05


class CallThread:
    def __init__(self, name: str, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """limit_s: how long a call may show no progress."""
        self._limit_s, self._clock = limit_s, clock
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._since: float | None = None  # when the call that runs has begun, or made progress
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], None]) -> None:
        """call: raises nothing."""
        self._calls.put(call)

    def progress(self) -> None:
        """The call that runs has made some."""
        self._since = self._clock()

    @property
    def is_overdue(self) -> bool:
        """Whether the call that runs has exceeded the limit."""
        since = self._since
        return since is not None and self._clock() - since > self._limit_s

    def close(self) -> bool:
        """Waits for the calls so far, unless one is overdue. Returns whether all have ended."""
        self._calls.put(None)
        while self._thread.is_alive() and not self.is_overdue:
            self._thread.join(_POLL_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            self._since = self._clock()
            call()
            self._since = None
