"""Staging: copies values to the device and back through pinned memory, which the device reads and writes itself.

There are more buffers than steps in flight, used in turn, so that a step seldom waits for one to be read.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

_DEPTH = 4  # the steps in flight, plus two
_POLL_S = 1e-4

Int32 = npt.NDArray[np.int32]


class Upload:
    """Values for one tensor on the device. A step may send any number of times: a long prompt is sent in parts."""

    def __init__(self, into: torch.Tensor, event: Callable[[], torch.cuda.Event] | None = None) -> None:
        """into: int32, contiguous, of one dimension. event: creates an event; None: CUDA events on a GPU, else none."""
        event = event or (new_event if into.is_cuda else None)
        self._into = into
        self._events = [event() for _ in range(_DEPTH)] if event is not None else []
        self._ring = [_pinned(len(into), into.device) for _ in range(_DEPTH)]
        self._views: list[Int32] = [each.numpy() for each in self._ring]
        self._at = 0

    def buffer(self) -> Int32:
        """A buffer for the next values, after the device has read its previous content. Call `send` next."""
        self._at = (self._at + 1) % _DEPTH
        if self._events:
            self._events[self._at].synchronize()
        return self._views[self._at]

    def send(self, count: int) -> None:
        """Copies the first `count` values of the buffer, after all work that is queued on the device."""
        self._into[:count].copy_(self._ring[self._at][:count], non_blocking=True)
        if self._events:
            self._events[self._at].record()


class Download:
    """Values of one tensor on the device, with an event that is recorded when they have arrived."""

    def __init__(self, source: torch.Tensor, check: Callable[[], None] | None = None) -> None:
        """source: int32, of one dimension. check: called at times while `wait` waits; raises if that cannot end."""
        self._source, self._check = source, check
        self._ring = [_pinned(len(source), source.device) for _ in range(_DEPTH)]
        self._events = [new_event() for _ in self._ring] if source.is_cuda else []
        self._at = 0

    def start(self, count: int) -> int:
        """Queues a copy of the first `count` values. Returns a ticket for `wait`."""
        self._at = (self._at + 1) % _DEPTH
        self._ring[self._at][:count].copy_(self._source[:count], non_blocking=True)
        if self._events:
            self._events[self._at].record()
        return self._at

    def wait(self, ticket: int, count: int) -> Int32:
        """Waits for the values and returns a copy. At most three other `start` calls may come between."""
        if self._events:
            if self._check is not None:
                while not self._events[ticket].query():  # type: ignore[no-untyped-call]
                    self._check()
                    time.sleep(_POLL_S)
            self._events[ticket].synchronize()
        found: Int32 = self._ring[ticket][:count].numpy().copy()
        return found


def new_event() -> torch.cuda.Event:
    """A thread that waits for it sleeps and releases the interpreter lock."""
    event: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    return event


def _pinned(count: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32, pin_memory=device.type == "cuda")
