"""RankLink: a connection of two ranks of a model, which send each other the messages of rank_messages.py."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import sys
import threading
import time
from collections.abc import Callable

from ...frames import LENGTH_BYTES, framed, length_of
from .rank_messages import CODEC, RankMessage


class RankLink:
    """One end of a connection between two processes."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()
        self._aside: Callable[[RankMessage], bool] = lambda message: False
        self._part, self._num_read, self._is_length = bytearray(LENGTH_BYTES), 0, True  # what is being read

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: RankMessage) -> None:
        """Raises OSError if the other process has ended."""
        self.send_bytes(packed(message))

    def send_bytes(self, data: bytes) -> None:
        """data: of `packed`."""
        with self._sending:
            self._socket.sendall(data)

    def offer(self, message: RankMessage, limit_s: float = 0.0) -> None:
        """Send a short message, unless `send` would wait longer than limit_s: another thread sends, or the other
        process does not read."""
        deadline = time.monotonic() + limit_s
        if not self._sending.acquire(timeout=limit_s):
            return
        try:
            fd = self._socket.fileno()
            if fd < 0:
                raise OSError(errno.EBADF, "this end is closed")
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            if poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self._socket.sendall(packed(message))
        finally:
            self._sending.release()

    def receive(self, max_bytes: int = sys.maxsize) -> RankMessage:
        """Waits for a message.

        max_bytes: of a message, if the other process is not known.
        Raises EOFError if it has ended, OSError if the connection is broken, ValueError for what is no message.
        """
        while (message := self.receive_part(max_bytes)) is None or self._aside(message):
            pass
        return message

    def take_aside(self, handle: Callable[[RankMessage], bool]) -> None:
        """Pass each message to `handle` first; `receive` does not return one for which it returns True.

        Messages that may come at any time are handled so, also while a step waits for another one.
        """
        self._aside = handle

    def receive_part(self, max_bytes: int = sys.maxsize) -> RankMessage | None:
        """Receive, but read once, and do not wait if something has come. Returns None before the end of a message."""
        got = self._socket.recv_into(memoryview(self._part)[self._num_read :])
        if not got:
            raise EOFError("the other process has ended")
        self._num_read += got
        if self._num_read < len(self._part):
            return None
        part, is_length, self._num_read, self._is_length = self._part, self._is_length, 0, not self._is_length
        self._part = bytearray(length_of(part, max_bytes) if is_length else LENGTH_BYTES)
        return None if is_length else CODEC.decode(part)

    def shut_down(self) -> None:
        """Calls that wait on either side end with an error."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def packed(message: RankMessage) -> bytes:
    """The bytes of a message."""
    return framed(CODEC.encode(message))
