"""CopyStream: copies between host memory and a device, while the current stream of the device computes.

On the CPU, where Triton's interpreter runs, both are one queue, in the order of the calls, and there are no events.
"""

from __future__ import annotations

import torch

from .staging import new_event

Event = torch.cuda.Event | None  # None: nothing to wait for


class CopyStream:
    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        """Queues a copy. What is in host memory must be pinned, and stay until the copy has ended."""
        if self._stream is None:
            into.copy_(source)
            return
        with torch.cuda.stream(self._stream):
            into.copy_(source, non_blocking=True)

    def copied(self) -> Event:
        """The event after the copies that are queued until now."""
        if self._stream is None:
            return None
        event = new_event()
        event.record(self._stream)
        return event

    def computed(self) -> Event:
        """The event after the computation that is queued until now."""
        if self._stream is None:
            return None
        event = new_event()
        event.record()
        return event

    def copy_after(self, event: Event) -> None:
        """Copies that are queued from now on wait for the event."""
        if event is not None and self._stream is not None:
            self._stream.wait_event(event)

    def compute_after(self, event: Event) -> None:
        """Computation that is queued from now on waits for the event."""
        if event is not None:
            torch.cuda.current_stream().wait_event(event)


def wait_for(event: Event) -> None:
    """Wait, in any thread, until the event has come. Raises RuntimeError if the device has failed."""
    if event is not None:
        event.synchronize()


def has_come(event: Event) -> bool:
    return event is None or bool(event.query())  # type: ignore[no-untyped-call]
