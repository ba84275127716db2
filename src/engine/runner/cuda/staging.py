"""Staging: numbers on their way to the device and back, through memory that the device reads and writes by itself.

Several buffers take turns, more than there are steps in flight, so that a step seldom waits for one to be read.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

_DEPTH = 4  # steps in flight, and two more

Int32 = npt.NDArray[np.int32]


class Upload:
    """Numbers for one place on the device. A step may send any number of times: a long prompt goes up in parts."""

    def __init__(self, into: torch.Tensor, event: Callable[[], torch.cuda.Event] | None = None) -> None:
        """into: int32, contiguous, of one dimension. event: makes one; None: none are needed but on a GPU."""
        event = event or (new_event if into.is_cuda else None)
        self._into = into
        self._events = [event() for _ in range(_DEPTH)] if event is not None else []
        self._ring = [_pinned(len(into), into.device) for _ in range(_DEPTH)]
        self._views: list[Int32] = [each.numpy() for each in self._ring]
        self._at = 0

    def buffer(self) -> Int32:
        """Where to write the next numbers, once the device has read those before; then comes `send`."""
        self._at = (self._at + 1) % _DEPTH
        if self._events:
            self._events[self._at].synchronize()
        return self._views[self._at]

    def send(self, count: int) -> None:
        """The first `count` numbers of the buffer, behind all work that the device has been given."""
        self._into[:count].copy_(self._ring[self._at][:count], non_blocking=True)
        if self._events:
            self._events[self._at].record()


class Download:
    """Numbers from one place on the device, with the event that tells that they are there."""

    def __init__(self, source: torch.Tensor) -> None:
        """source: int32, of one dimension."""
        self._source = source
        self._ring = [_pinned(len(source), source.device) for _ in range(_DEPTH)]
        self._events = [new_event() for _ in self._ring] if source.is_cuda else []
        self._at = 0

    def start(self, count: int) -> int:
        """Fetches the first `count` numbers once the device gets there. Returns what `wait` wants to know."""
        self._at = (self._at + 1) % _DEPTH
        self._ring[self._at][:count].copy_(self._source[:count], non_blocking=True)
        if self._events:
            self._events[self._at].record()
        return self._at

    def wait(self, ticket: int, count: int) -> Int32:
        """The numbers, for the caller to keep. No more than three other `start` may come between."""
        if self._events:
            self._events[ticket].synchronize()
        found: Int32 = self._ring[ticket][:count].numpy().copy()
        return found


def new_event() -> torch.cuda.Event:
    """A thread that waits for it sleeps, and lets others have the interpreter."""
    event: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    return event


def _pinned(count: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32, pin_memory=device.type == "cuda")
