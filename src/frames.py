"""Frames: bytes with their length before them, on every connection of processes that is a stream of bytes.

The reader of a frame says how long it may be. This is checked before memory for the frame is allocated.
"""

from __future__ import annotations

LENGTH_BYTES = 8


class FrameTooLong(ValueError):
    """The other side announces a frame that is longer than the reader allows."""


def length_before(data: bytes | bytearray) -> bytes:
    """The bytes that are sent before `data`."""
    return len(data).to_bytes(LENGTH_BYTES, "big")


def framed(data: bytes) -> bytes:
    return length_before(data) + data


def length_of(header: bytes | bytearray | memoryview, max_bytes: int) -> int:
    """The length of the frame that follows `header`. Raises FrameTooLong."""
    length = int.from_bytes(header, "big")
    if length > max_bytes:
        raise FrameTooLong(f"a frame of {length} bytes, at most {max_bytes} are read")
    return length
