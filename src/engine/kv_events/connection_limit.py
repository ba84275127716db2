"""ConnectionLimit: closes the connections to a ZMQ socket beyond a number, which ZMQ itself does not bound."""

from __future__ import annotations

import contextlib
import os
import socket
from urllib.parse import urlsplit

import zmq
from zmq.utils.monitor import parse_monitor_message


class ConnectionLimit:
    """The limit on connections of a socket that is not bound yet. Call `check` when `events` can be read."""

    def __init__(self, watched: zmq.Socket[bytes], most: int) -> None:
        self._watched = watched
        self._most = most
        self._num_open = 0
        address = f"inproc://connections-{id(watched)}"
        watched.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self.events: zmq.Socket[bytes] = watched.context.socket(zmq.PAIR)
        self.events.rcvhwm = 0  # ZMQ's own thread waits where an event finds no room
        self.events.linger = 0
        self.events.connect(address)

    def check(self) -> None:
        while True:
            try:
                event = parse_monitor_message(self.events.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            if event["event"] == zmq.EVENT_DISCONNECTED:  # once for each that was accepted
                self._num_open -= 1
                continue
            self._num_open += 1
            if self._num_open > self._most:
                with contextlib.suppress(OSError):  # it has gone
                    self._shut_down(event["value"])

    def _shut_down(self, descriptor: int) -> None:
        """ZMQ then closes it. The descriptor may have become another's: only a connection to this address is ended."""
        duplicate = os.dup(descriptor)
        try:
            connection = socket.socket(fileno=duplicate)
        except OSError:
            os.close(duplicate)
            raise
        with connection:
            if self._is_own(connection.getsockname()):
                connection.shutdown(socket.SHUT_RDWR)

    def _is_own(self, name: object) -> bool:
        """name: a socket's own address."""
        bound = self._watched.getsockopt_string(zmq.LAST_ENDPOINT)
        if isinstance(name, tuple):
            return bool(name[1] == urlsplit(bound).port)
        return name == bound.removeprefix("ipc://")
