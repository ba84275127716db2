"""The events of a response in the background, as they were written, for clients that come back to its stream.

The events are numbered from 0. Full blocks of them are compressed, to about a tenth. All logs of running responses
together have a limit; a log that would exceed it is given up, and its response goes on without one.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import AsyncGenerator, Sequence

BLOCK = 128  # events
_END = b"\n\n"  # of an event; there is none within it
_LENGTH = struct.Struct("<I")


class EventsLost(Exception):
    """The log was given up: its events cannot be sent again."""


class LogMemory:
    """What the logs of running responses may take together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_bytes = 0

    def take(self, num_bytes: int) -> bool:
        """Whether there was room. A negative number gives back."""
        if num_bytes > 0 and self._num_bytes + num_bytes > self._limit:
            return False
        self._num_bytes += num_bytes
        return True


class EventLog:
    def __init__(self, memory: LogMemory | None = None, blocks: Sequence[bytes] = ()) -> None:
        """blocks: of a log that has ended."""
        self._memory = memory
        self._blocks = [*blocks]  # each of BLOCK events, but the last one of a log that has ended
        self._tail: list[bytes] = []
        self._taken = 0
        self._is_lost = False
        self._has_ended = memory is None
        self._changed = asyncio.Event()

    def add(self, frames: Sequence[bytes]) -> None:
        """Add frames, each of which is one event."""
        if self._is_lost:
            return
        for frame in frames:
            self._tail.append(frame)
            change = len(frame)
            if len(self._tail) == BLOCK:
                block = zlib.compress(b"".join(self._tail), 1)
                change += len(block) - sum(map(len, self._tail))
                self._blocks.append(block)
                self._tail.clear()
            if self._memory is not None and not self._memory.take(change):
                self._lose()
                return
            self._taken += change
        self._wake()

    def end(self) -> None:
        """End the log: no event follows, and what the log took is given back."""
        self._has_ended = True
        self._give_back()
        self._wake()

    async def frames(self, after: int) -> AsyncGenerator[bytes, None]:
        """The events after the number `after`, including events to come. Raises EventsLost."""
        following = after + 1
        while True:
            changed = self._changed
            if self._is_lost:
                raise EventsLost
            found = self._from(following)
            if found:
                following += len(found)
                yield b"".join(found)
            elif self._has_ended:
                return
            else:
                await changed.wait()

    def packed(self) -> bytes | None:
        """Pack the log for the store. None: the events are lost."""
        if self._is_lost:
            return None
        tail = [zlib.compress(b"".join(self._tail))] if self._tail else []
        return b"".join(_LENGTH.pack(len(block)) + block for block in [*self._blocks, *tail])

    @classmethod
    def unpacked(cls, data: bytes) -> EventLog:
        blocks: list[bytes] = []
        at = 0
        while at < len(data):
            start = at + _LENGTH.size
            at = start + _LENGTH.unpack_from(data, at)[0]
            blocks.append(data[start:at])
        return cls(blocks=blocks)

    def _from(self, number: int) -> list[bytes]:
        """Events from this number on, of one block at most."""
        block, index = divmod(number, BLOCK)
        if block >= len(self._blocks):
            return self._tail[number - len(self._blocks) * BLOCK :]
        events = zlib.decompress(self._blocks[block]).split(_END)
        return [event + _END for event in events[index:-1]]

    def _lose(self) -> None:
        self._is_lost = True
        self._blocks.clear()
        self._tail.clear()
        self._give_back()
        self._wake()

    def _give_back(self) -> None:
        if self._memory is not None:
            self._memory.take(-self._taken)
        self._taken = 0

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
