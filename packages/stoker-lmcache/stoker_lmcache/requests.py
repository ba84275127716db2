"""LmcacheRequests: calls to an LMCache server in its multi-process mode (`lmcache server`), over ZeroMQ.

A call is a message of msgpack frames: its number, its operation, its arguments. The answer repeats the first two, and
has the result unless that is None. A server that fails to execute a call does not answer it. Written for LMCache 0.5.6.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import msgpack
import zmq


class LmcacheUnavailable(OSError):
    """The server does not answer in time, or not as it should."""

    def __init__(self, reason: str, contents: list[memoryview] | None = None) -> None:
        """contents: of blocks that were read before."""
        super().__init__(reason)
        self.contents = contents or []


class LmcacheRequests:
    """Requests to an LMCache server, for one thread at a time."""

    def __init__(self, address: str, limit_s: float) -> None:
        """address: tcp://HOST:PORT. limit_s: without an answer, after which the server is taken for dead."""
        self._address, self.limit_s = address, limit_s
        self._numbers = count()
        self._socket: zmq.Socket[bytes] | None = None
        self._events: zmq.Socket[bytes] | None = None  # that a connection has ended, or was refused

    @property
    def is_connected(self) -> bool:
        """Whether the server that was asked last may still run: the connection to it has not ended."""
        return self._events is not None and not self._events.poll(0)

    def call(self, operation: str, *arguments: Any) -> Any:
        """Raises LmcacheUnavailable."""
        return self.call_all(operation, [arguments])[0]

    def call_all(self, operation: str, calls: Sequence[Sequence[Any]]) -> list[Any]:
        """The results of these calls, which the server may execute at the same time. Raises LmcacheUnavailable."""
        results: dict[int, Any] = {}
        try:
            numbers = [self._send(operation, arguments) for arguments in calls]
            missing = set(numbers)
            deadline = time.monotonic() + self.limit_s
            while missing:
                number, result = self._receive(deadline)
                if number in missing:  # others are the answers to `send`
                    missing.remove(number)
                    results[number] = result
                    deadline = time.monotonic() + self.limit_s
        except (zmq.ZMQError, ValueError, msgpack.UnpackException, LmcacheUnavailable) as error:
            self.close()  # what was asked is not answered later, nor sent to a server that starts later
            raise LmcacheUnavailable(f"{self._address}, `{operation}`: {error}") from error
        return [results[number] for number in numbers]

    def send(self, operation: str, calls: Sequence[Sequence[Any]]) -> None:
        """Calls whose results are not needed. Raises LmcacheUnavailable."""
        try:
            for arguments in calls:
                self._send(operation, arguments)
        except zmq.ZMQError as error:
            self.close()
            raise LmcacheUnavailable(f"{self._address}, `{operation}`: {error}") from error

    def _send(self, operation: str, arguments: Sequence[Any]) -> int:
        number = next(self._numbers)
        frames = [msgpack.packb(each) for each in (number, operation, *arguments)]
        self._connected().send_multipart(frames)
        return number

    def _receive(self, deadline: float) -> tuple[int, Any]:
        """Number and result. Raises LmcacheUnavailable, ValueError, msgpack.UnpackException."""
        remaining_s = max(0.0, deadline - time.monotonic())
        poller = zmq.Poller()
        poller.register(self._connected(), zmq.POLLIN)
        poller.register(self._events, zmq.POLLIN)
        ready = dict(poller.poll(int(remaining_s * 1000)))
        if self._connected() in ready:
            number, _, *result = map(msgpack.unpackb, self._connected().recv_multipart())
            return number, result[0] if result else None
        raise LmcacheUnavailable("no connection" if ready else f"no answer for {self.limit_s:g} s")

    def _connected(self) -> zmq.Socket[bytes]:
        if self._socket is None:
            self._socket = zmq.Context.instance().socket(zmq.DEALER)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.setsockopt(zmq.IPV6, int("[" in self._address))  # else localhost might mean ::1
            self._socket.setsockopt(zmq.SNDTIMEO, int(self.limit_s * 1000))
            self._events = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED)
            self._socket.connect(self._address)
        return self._socket

    def close(self) -> None:
        """The next call connects again."""
        if self._socket is not None and self._events is not None:
            self._socket.disable_monitor()
            self._events.close()
            self._socket.close()
            self._socket = self._events = None


def field(answer: Any, *names: str) -> Any:
    """A field of an answer, at a path of names. Raises LmcacheUnavailable if it is missing."""
    for name in names:
        if not isinstance(answer, Mapping) or name not in answer:
            raise LmcacheUnavailable(f"its answer has no `{name}`: another version?")
        answer = answer[name]
    return answer
